"""How each kind of fact changes the state: one function per kind, pure and total."""
