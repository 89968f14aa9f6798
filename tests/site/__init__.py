"""The book: its site is built, and the commands of its pages exist and run (`make site-test`)."""
