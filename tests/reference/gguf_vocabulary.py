"""Reads the tokenizer part of a GGUF v2 or v3 file: tokens, token types, merges.

An oracle's reader: it trusts its file and shares nothing with model/.
"""

import struct
from dataclasses import dataclass

CONTROL_TOKEN_TYPE = 3

# GGUF value types: 0..7 and 10..12 are plain numbers, 8 is a string, 9 an array.
_NUMBER_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
                   12: "d"}
_STRING_TYPE = 8
_ARRAY_TYPE = 9


@dataclass
class Vocabulary:
    tokens: list[str]
    token_types: list[int]
    merges: list[tuple[str, str]]

    def control_tokens(self) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.token_types)
                if kind == CONTROL_TOKEN_TYPE]


class _Cursor:
    def __init__(self, data: bytes):
        self._data = data
        self._offset = 0

    def number(self, code: str):
        (value,) = struct.unpack_from("<" + code, self._data, self._offset)
        self._offset += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length = self.number("Q")
        start = self._offset
        self._offset += length
        return self._data[start:self._offset].decode("utf-8")

    def value(self, kind: int):
        if kind == _STRING_TYPE:
            return self.string()
        if kind == _ARRAY_TYPE:
            element_kind = self.number("I")
            count = self.number("Q")
            return [self.value(element_kind) for _ in range(count)]
        return self.number(_NUMBER_FORMATS[kind])


def read_metadata(path: str) -> dict:
    # The metadata of the models used here ends long before this many bytes.
    with open(path, "rb") as file:
        cursor = _Cursor(file.read(64 << 20))
    if cursor.number("I") != 0x46554747:
        raise ValueError(f"{path} is not a GGUF file")
    version = cursor.number("I")
    if version not in (2, 3):
        raise ValueError(f"{path} has GGUF version {version}")
    cursor.number("Q")  # tensor count
    pair_count = cursor.number("Q")
    metadata = {}
    for _ in range(pair_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.number("I"))
    return metadata


def read_vocabulary(path: str) -> Vocabulary:
    metadata = read_metadata(path)
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    return Vocabulary(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"],
                      merges)
