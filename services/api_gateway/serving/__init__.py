"""Rules for requests to models.

They say which request may wait, whose turn it is, which replica serves it, and how many replicas a
model needs.
All files are pure: state and time go in, a choice comes out. So the gateway, the engine model in
tests/sim and the property tests run the same code. Times are nanoseconds of one clock that never
goes back; quantities of work are tokens. docs/serving.md has a chapter for each module.
"""
