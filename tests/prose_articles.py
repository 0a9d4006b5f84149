"""The articles `a` and `an`, by the sound that follows: "an f32", "a unit", "an 8-bit code"."""

from __future__ import annotations

import re
from collections.abc import Iterator

REASON = "`an` is for vowel sounds, `a` for others"
ARTICLE = re.compile(r"(?<![\w%.$'\"`\-])([Aa]n?)(?: |\n\s*(?:# )?)(`?)([A-Za-z0-9]+)")
# `a` may be the name of a value, if one of these words follows
AFTER_NAME = re.compile(
    "(an?|or|and|is|in|if|of|as|at|on|else|into|are|also|equals|it?|alone|along|unless)"
)
VOWEL_SOUND = re.compile(
    r"hour|hono|honest|heir|[ai]|o(?!ne\b|nce\b)|e(?!u|wer)|u(?!ni(?!n|m)|s[aeu]|til|top|bi)"
)
SPELLED = frozenset(["MLIR", "LLVM", "NVRTC", "XLA", "HLO", "SM", "MMA", "FMA", "SSA", "RNG"])
EITHER = frozenset(["ulp", "ulps"])


def vowel_sound(word: str) -> bool | None:
    """True if a word begins with a vowel sound; None if speakers differ."""
    if word[0].isdigit():
        return re.match(r"8|1[18](?!\d)", word) is not None
    if word in SPELLED:
        return True
    if word in EITHER or len(word) == 1:
        return None
    if re.fullmatch(r"[a-z]{1,2}\d+\w*", word):  # types: an f32, an i64, a u8
        return {"f": True, "i": True, "u": False, "b": False}.get(word[0])
    if not word[1].islower():  # letters, or a word in capitals
        return True if word[0] in "AEIO" else None if word[0] in "FHLMNRSXU" else False
    return VOWEL_SOUND.match(word.lower()) is not None


def wrong(text: str) -> Iterator[re.Match[str]]:
    """The wrong articles of a text, each with the word that follows."""
    for found in ARTICLE.finditer(text):
        article, word = found[1].lower(), found[3]
        if not AFTER_NAME.fullmatch(word.lower()) and vowel_sound(word) is (article == "a"):
            yield found
