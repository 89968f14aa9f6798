"""The program that calls a shipped function on a node.

It travels with the function, so the node needs nothing but Python. Every Python 3 must be able to
read this file, because it reports when the versions differ. The outcome is one line of JSON, then
the pickled result or exception; it appears under its name when it is complete.
"""

import json
import os
import sys
import traceback

# The folder of this file in the job's working directory, and the files in it.
FOLDER = ".muster-call"
CALL = "call.json"
FUNCTION = "function.pickle"
LIBRARIES = "libraries"
OUTCOME = "outcome"
# States of an outcome.
RETURNED = "returned"
RAISED = "raised"
MISMATCH = "mismatch"
# The largest pickled result.
RESULT_BYTES_MAX = 64 << 20


def main() -> int:
    """Call the function and write its outcome. Return the exit code of the job."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, CALL)) as file:
        call = json.load(file)
    found = "%d.%d" % sys.version_info[:2]  # noqa: UP031  older Pythons read this
    if found != call["python"]:
        text = (
            "the function was pickled by Python {}, and {} on this node is Python {}: choose "
            "another interpreter with python=, or an image with Python {}"
        ).format(call["python"], sys.executable, found, call["python"])
        sys.stderr.write("muster: " + text + "\n")
        write(folder, MISMATCH, text, b"")
        return 1
    sys.path.insert(0, os.path.join(folder, LIBRARIES))
    sys.path.insert(0, os.getcwd())
    return call_function(folder, int(os.environ.get("MUSTER_ARRAY_TASK_ID") or 0))


def call_function(folder: str, number: int) -> int:
    """Call the function with its arguments of this number. Return the exit code."""
    import cloudpickle

    try:
        with open(os.path.join(folder, FUNCTION), "rb") as file:
            function, calls = cloudpickle.load(file)
        arguments, named = calls[number]
        payload = cloudpickle.dumps(function(*arguments, **named))
        if len(payload) > RESULT_BYTES_MAX:
            raise ValueError(
                f"the result has {len(payload)} bytes pickled, and at most {RESULT_BYTES_MAX} "
                "travel: write it to a file, and copy that with muster cp"
            )
    except Exception as error:
        text = traceback.format_exc()
        sys.stderr.write(text)
        # First without the exception: some cannot be pickled, and then this program ends here.
        write(folder, RAISED, text, b"")
        write(folder, RAISED, text, cloudpickle.dumps(error))
        return 1
    write(folder, RETURNED, "", payload)
    return 0


def write(folder: str, state: str, text: str, payload: bytes) -> None:
    """Write the outcome under another name, then rename it: a reader never sees a part of it."""
    part = os.path.join(folder, OUTCOME + ".part")
    with open(part, "wb") as file:
        head = json.dumps({"state": state, "text": text[-100000:]})
        file.write(head.encode() + b"\n" + payload)
    os.replace(part, os.path.join(folder, OUTCOME))


if __name__ == "__main__":
    sys.exit(main())
