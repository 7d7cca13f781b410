# SPDX-License-Identifier: GPL-2.0-or-later
"""Hostile bytes for parsers: mutations of valid input that keep most of its structure.

Hypothesis takes a millisecond for each example, this a hundredth of that.
"""

import random
import re
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# Processor seconds that one small input may take; bytes of memory that it may take beside what the process has.
SECONDS = 1.0
ROOM = 512 * 1024 * 1024
# Bytes of the largest input.
LONGEST = 64 * 1024

# What has broken parsers: ends of ranges, wrong types, texts that no encoding has, numbers and nesting without end.
HOSTILE = (
    *(b"", b"0", b"-1", b"-0", b"1e999", b"NaN", b"-Infinity", b"1.5", b"9" * 19, b"9" * 20, b"9" * 5000, b"-" + b"9" * 5000),
    *(b"null", b"true", b"[]", b"{}", b'""', b"[[]]", b'"deleted"', b'[null]', b'{"":0}', b"[" * 3000, b'{"a":' * 3000),
    *(b'"\\ud800"', b'"\\u0000"', b"\\ud800", b"\\u0000", b'"' + b"x" * 300 + b'"',),
    *(b"\0", b"\n", b"\r\n", b" ", b"\t", b"\xff", b"\xc2\xb2"),
    *(b"..", b"/", b"../" * 8, b":", b"%", b"%00", b"+", b"-", b"\xd9\xa3", b"(" * 300, b"a" * 40, b"0" * 40),
    *(b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\1"),
)  # fmt: skip
_WORD = re.compile(rb'"(?:[^"\\]|\\.)*"|[\w.-]+|\[\]|\{\}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """A parser with valid inputs, and the errors that it documents.

    `write` makes bytes of what it gave, which it must read back as the same value. `words` are further texts of its format.
    """

    read: Callable[[bytes], object]
    corpus: Sequence[bytes]
    errors: tuple[type[Exception], ...] = ()
    write: Callable[[object], bytes] | None = None
    words: Sequence[bytes] = ()


def hunt(parser: Parser, count: int, seed: object) -> tuple[int, int]:
    """Read the corpus and `count` mutations; return how many were read and how many refused.

    Raises AssertionError, which shows the input, for an error that the parser does not document, a value that it does not read
    back, or too much time or memory.
    """
    chance, outcomes = random.Random(f"{seed}"), [0, 0]
    with _bounded_memory():
        for content in (*parser.corpus, *_mutations(parser, count, chance)):
            began = time.thread_time()
            try:
                outcomes[_read(parser, content)] += 1
            except Exception as problem:
                raise AssertionError(
                    f"{type(problem).__name__}: {problem!s:.200} for {content[:300]!r}, seed {seed}"
                ) from problem
            took = time.thread_time() - began
            assert took < SECONDS, f"{took:.1f} s for {content[:300]!r} of {len(content)} bytes, seed {seed}"
    return outcomes[0], outcomes[1]


def mutate(content: bytes, chance: random.Random, words: Sequence[bytes], others: Sequence[bytes]) -> bytes:
    """Return the content with one change."""
    first, second = sorted((chance.randint(0, len(content)), chance.randint(0, len(content))))
    near = min(second, first + chance.randint(0, 8))
    kind = chance.randrange(9)
    if kind == 0 and content:
        place = chance.randrange(len(content))
        return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]
    if kind == 1:
        return content[:first] + content[near:]
    if kind == 2:
        return content[:first]
    if kind == 3:
        return content[:second] + content[first:]
    if kind == 4:
        other = chance.choice(others)
        return content[:first] + other[chance.randint(0, len(other)) :]
    if kind == 5:
        return content[:first] + chance.choice(HOSTILE) + content[near:]
    if kind == 6:
        return content[:first] + chance.randbytes(chance.randint(1, 8)) + content[near:]
    found = list(_WORD.finditer(content))
    if not found:
        return content + chance.choice(words)
    word = chance.choice(found)
    return content[: word.start()] + chance.choice(words) + content[word.end() :]


def _mutations(parser: Parser, count: int, chance: random.Random) -> Iterator[bytes]:
    own = [word for content in parser.corpus for word in _WORD.findall(content[:LONGEST])]
    words = [*HOSTILE, *parser.words, *dict.fromkeys(own)]
    for _ in range(count):
        content = chance.choice(parser.corpus)
        for _ in range(chance.choice((1, 1, 2, 4))):
            content = mutate(content, chance, words, parser.corpus)
        yield content[:LONGEST]


def _read(parser: Parser, content: bytes) -> bool:
    """Read one input; return whether it was refused."""
    try:
        value = parser.read(content)
    except parser.errors:
        return True
    if parser.write is not None:
        written = parser.write(value)
        again = parser.read(written)
        assert again == value, f"{value!r:.300} is read back as {again!r:.300}"
        assert parser.write(again) == written
    return False


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Have a parser that takes much memory raise MemoryError within the block."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
