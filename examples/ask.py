#!/usr/bin/env python3
"""Send one question to a model of the cluster, with Python's standard library alone.

    MUSTER_API_KEY=... examples/ask.py MODEL "QUESTION"

The address is MUSTER_URL, or that of a cluster on this machine.
"""

import json
import os
import sys
from urllib.request import Request, urlopen


def main() -> None:
    """Print the answer, the tokens that it used, and the id of the request."""
    model, question = sys.argv[1:]
    url = os.environ.get("MUSTER_URL", "http://127.0.0.1:8080") + "/v1/chat/completions"
    body = {"model": model, "messages": [{"role": "user", "content": question}]}
    headers = {
        "Authorization": f"Bearer {os.environ['MUSTER_API_KEY']}",
        "Content-Type": "application/json",
    }
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=60) as answer:
        found = json.load(answer)
        print(found["choices"][0]["message"]["content"])
        print(found["usage"]["total_tokens"], "tokens, request", answer.headers["x-request-id"])


if __name__ == "__main__":
    main()
