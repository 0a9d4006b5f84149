"""Phrases that the project's text does not use, each with the reason and with examples.

A space in a pattern matches any white space, so phrases are found across lines. `hits` are
examples that a rule finds, `passes` are similar sentences of ordinary English that it must not
find; tests/packaging/test_prose.py checks both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Rule:
    """One rule. It applies to all texts, or only to docstrings.

    Attributes:
        name: printed with each hit.
        reason: what to write instead, printed with each hit.
        pattern: the regular expression of a hit.
        hits: sentences with a hit.
        passes: similar sentences without one.
        docstrings: True if only docstrings are read.
    """

    name: str
    reason: str
    pattern: str
    hits: tuple[str, ...]
    passes: tuple[str, ...]
    docstrings: bool = False

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern; a space stands for any white space, also that around the `#` of comments."""
        return re.compile(self.pattern.replace(" ", r"[\s#]+"))


_COUNTED = (
    "a|an|each|every|no|one|two|three|four|the|this|next|first|last|per|of|many|few|fewer|more"
)

RULES: tuple[Rule, ...] = (
    Rule(
        "opening",
        "begin with a verb or a noun of the field: `Returns ...`, `True if ...`, `The number ...`",
        r"\A(What|Where|Which|Whether|Whose|Who|How|Whatever|Wherever|Though|Of|Those)\b(?![^.]*\?)",
        ("Whether a loop is serial.", "What a loop adds.", "How many loops there are.", "Of f32."),
        ("True if a loop is serial.", "The axis: what is it?", "Offsets of rows.", "Whole rows."),
        docstrings=True,
    ),
    Rule(
        "lie",
        "say `is`, `is stored`, `is contiguous`, `is strided` or `is transposed`",
        r"\b[Ll]ies?\b(?! (in|on|between|within|outside|inside|below|above|beyond)\b)",
        ("values that lie across", "as they lie.", "the axis along which it lies together"),
        ("the interval lies on one side of 0", "a step lies between them", "a relief"),
    ),
    Rule(
        "turn",
        "say `iteration`, or `step` of an algorithm",
        rf"\b({_COUNTED}) turns?\b(?! (it|them)?\b(into|off|on)\b)",
        ("one copy for each turn", "in three turns", "the turn that writes"),
        ("each in turn", "runs that took turns", "a pass that turns loops into calls"),
    ),
    Rule(
        "turned",
        "say `transposed`, `reversed` or `permuted`",
        r"(?<![`%\w])turned\b(?! (on|off|out|into|to|back|around|up|down)\b)(?!`| =|\()",
        ("the operand is turned once", "its axes turned and merged"),
        ("the cache is turned off", "calls turned into loops", "attribute `turned` of the op"),
    ),
    Rule(
        "alike",
        "say `equal`, `equivalent`, `the same` or `both`",
        r"\b[Aa]like\b",
        ("nodes that are alike", "Alike nodes"),
        ("a likely branch",),
    ),
    Rule(
        "made of",
        "say `computed from`, `consists of` or `is a sum of`",
        r"\b(made|makes?) of\b",
        ("what it is made of", "what eager makes of it"),
        ("made use of a cache", "the name is made by the pass"),
    ),
    Rule(
        "told",
        "say `distinguished`, `given`, `reported` or `determined`",
        r"\b(is|are|was|were|be|been|not|and|one|axis) told\b|\btold (apart|from|by|that|what)\b"
        r"|\b[Tt]ells? (of|about|apart|other|nothing|(\w+ ){1,4}apart)\b",
        ("nothing is told", "told apart from eager's", "what tells two functions apart"),
        ("rowsum(told * out)", "the text tells why"),
    ),
    Rule(
        "stand",
        "say `is`, `is at`, `is in` or `is listed`",
        r"\b[Ss]tands?\b(?!-)(?! (for|still|alone|out)\b)",
        ("channels stand last", "what stands between them"),
        ("`...` stands for any axes", "a stand-in for a GPU", "it must stand for itself"),
    ),
    Rule(
        "apart",
        "say `separate`, `split`, `distinct` or `unfused`; distances may be `8 apart`",
        r"\b(stays?|stayed|kept|keeps?|leaves?|left|takes?|taken|cut)"
        r" (\w+ |\{\} )?(from (\w+ )?)?apart\b",
        ("which groups stay apart", "the pass leaves them apart", "products taken apart"),
        ("rows that are 8 apart", "lines far apart", "apart from the first"),
    ),
    Rule(
        "hold",
        "say `compared with`, `kept whole`, `stays constant` or `requires`",
        r"\b[Hh]eld (against|whole|to)\b"
        r"|\b[Hh]olds? (still|(it|them|each \w+|\w+) (against|to what))\b",
        ("results held against f64", "rows that are held whole", "the clock holds still"),
        ("the facts hold for all operands", "registers hold the sums", "a lock is held"),
    ),
    Rule(
        "places",
        "say `indices`, `positions` or `elements`",
        r"\b(known|such|those|these|all|many|two|four|same|other) places\b"
        r"|(?<!in\s)(?<!the\s)\bplaces? of (an?|the|each|every|rows?|windows?|pictures?|images?)\b"
        r"|\b(each|every) place\b",
        ("known places of one row", "a place of an axis", "each place"),
        ("updated in place of the copy", "the last place differs", "it takes the place of x"),
    ),
    Rule(
        "asked",
        "say `computed`, `queried` or `tested`",
        r"\b[Aa]sk(s|ed)? (of|once)\b|\b[Aa]sks only\b",
        ("asked of its blocks", "what does not change is asked once"),
        ("asked for a tile", "a user asked why"),
    ),
    Rule(
        "goes by",
        "say `depends on`, `uses` or `follows`",
        r"\b(go|goes|gone|went|going) by\b(?! (the )?(name|way)\b)",
        ("its price goes by them", "programs go by it"),
        ("it goes by name", "a cargo by sea"),
    ),
    Rule(
        "spared",
        "say `skipped` or `avoided`",
        r"\b[Ss]pared?\b(?! (time|cores?)\b)",
        ("a copy is spared",),
        ("a spare core, which is sparse",),
    ),
    Rule(
        "look",
        "say `search`, `lookup` or `layout`",
        r"\b([Tt]he|[Aa]|by the) looks?\b(?! at\b|-)",
        ("by the look for one",),
        ("a pass looks for loops", "take a look at the text", "a look-back window"),
    ),
    Rule(
        "what became",
        "say `the result of` or `the outcome of`",
        r"\bbec[oa]mes? of\b|\b[Cc]a?ome of (a|it|them|the)\b",
        ("what became of one op",),
        ("the block becomes one kernel",),
    ),
    Rule(
        "take of",
        "say `uses` or `requires`",
        r"\btakes? of\b|\bleft open\b|\bcomes? back\b|\bdetours?\b|\bthe clock judges?\b",
        ("what a kernel takes of a machine", "what is left open is chosen"),
        ("it takes half of the cache", "an open file is left"),
    ),
)
