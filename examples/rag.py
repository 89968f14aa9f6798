#!/usr/bin/env python3
"""Answer a question from documents: embed them, find the nearest ones, ask a model with them.

    examples/rag.py --embed embedder --chat chat --documents docs "What is a lease?"

Both models are deployments of the cluster; the gateway speaks OpenAI's protocol (pip install
openai). Address and key: MUSTER_URL and MUSTER_API_KEY.
"""

import argparse
import os
from pathlib import Path

from openai import OpenAI

PIECE_CHARACTERS, NEAREST = 800, 3
AT_ONCE = 64  # texts in one request for embeddings


def main() -> None:
    """Print the answer, and the names of the files it was made from."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--embed", required=True, help="deployment that embeds texts")
    parser.add_argument("--chat", required=True, help="deployment that answers")
    parser.add_argument("--documents", type=Path, required=True, help="folder of .md files")
    asked = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("MUSTER_URL", "http://127.0.0.1:8080") + "/v1",
        api_key=os.environ["MUSTER_API_KEY"],
    )
    pieces = [
        (path.name, text[begin : begin + PIECE_CHARACTERS])
        for path in sorted(asked.documents.glob("*.md"))
        for text in [path.read_text()]
        for begin in range(0, len(text), PIECE_CHARACTERS)
    ]
    (wanted,) = embed(client, asked.embed, [asked.question])
    known = embed(client, asked.embed, [text for _, text in pieces])
    scores = [sum(a * b for a, b in zip(each, wanted, strict=True)) for each in known]
    best = sorted(range(len(pieces)), key=lambda at: -scores[at])[:NEAREST]
    context = "\n\n".join(f"[{pieces[at][0]}]\n{pieces[at][1]}" for at in best)
    prompt = f"Answer from this text only:\n\n{context}\n\nQuestion: {asked.question}"
    answer = client.chat.completions.create(
        model=asked.chat, messages=[{"role": "user", "content": prompt}]
    )
    print(answer.choices[0].message.content)
    print("from:", ", ".join(dict.fromkeys(pieces[at][0] for at in best)))


def embed(client: OpenAI, model: str, texts: list[str]) -> list[list[float]]:
    """Return one vector for each text, in order."""
    parts = [texts[at : at + AT_ONCE] for at in range(0, len(texts), AT_ONCE)]
    answers = [client.embeddings.create(model=model, input=part) for part in parts]
    return [row.embedding for answer in answers for row in answer.data]


if __name__ == "__main__":
    main()
