"""What token ids stand for, read from the tokenizer file that lies beside a run's checkpoint.

Only the vocabulary is needed, so no tokenizer library is: a piece of byte-level BPE (GPT-2, Qwen,
Llama 3) spells each byte as a character, one of SentencePiece has `\u2581` for a space and `<0x0A>`
for a byte.
"""

import json
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any


def tokenizer_file(folder: Path, spec: dict[str, Any]) -> Path | None:
    """The tokenizer of a run: of its newest checkpoint, or of the folder that its model lies in."""
    # One that is being written lies in a folder `step_N.part`.
    saved = [f for f in folder.glob("checkpoints/*/tokenizer.json") if not f.parent.suffix]
    newest = max(saved, key=lambda file: file.stat().st_mtime, default=None)
    if newest is not None:
        return newest
    model = (spec.get("policy") or {}).get("model")
    beside = Path(model) / "tokenizer.json" if isinstance(model, str) and model else None
    return beside if beside is not None and beside.is_file() else None


def pieces(file: Path, ids: Iterable[int]) -> dict[int, str]:
    """The text of each id; half a character is spelt as `\\xe2`."""
    words, added, byte_level = _vocabulary(file)
    spell = _bytes if byte_level else _plain
    shown = {}
    for id in ids:
        if id in added:
            shown[id] = added[id]
        elif id in words:
            shown[id] = spell(words[id])
    return shown


@lru_cache(maxsize=2)
def _vocabulary(file: Path) -> tuple[dict[int, str], dict[int, str], bool]:
    """Words by id, special words by id, and whether words spell bytes."""
    tokenizer = json.loads(file.read_text("utf-8"))
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    listed = enumerate(vocabulary) if isinstance(vocabulary, list) else ()  # unigram: pairs
    words = {id: str(word) for id, (word, *_) in listed} or {
        id: word for word, id in vocabulary.items()
    }
    added = {token["id"]: token["content"] for token in tokenizer.get("added_tokens") or ()}
    return words, added, "ByteLevel" in json.dumps(tokenizer.get("decoder"))


def _bytes(word: str) -> str:
    alphabet = _alphabet()
    if not all(character in alphabet for character in word):
        return word
    return bytes(alphabet[c] for c in word).decode("utf-8", "backslashreplace")


def _plain(word: str) -> str:
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", word)
    if byte:
        return bytes([int(byte[1], 16)]).decode("utf-8", "backslashreplace")
    return word.replace("\u2581", " ")


@cache
def _alphabet() -> dict[str, int]:
    """The byte of each character in byte-level BPE: printable bytes stand for themselves, the
    others for characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + n): byte for n, byte in enumerate(others)
    }
