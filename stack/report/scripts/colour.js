// Colours of comments, strings, values, numbers, types, words of the language and calls.
const COMMENTS = { py: "#.*", c: "\\/\\/.*", mlir: "\\/\\/.*", llvm: ";.*", asm: "[#;].*", ir: "(?!)" };
const KINDS = [
  ["string", `"(?:[^"\\\\]|\\\\.)*"|'[^']*'`],
  ["value", "[%@$][\\w.$-]+"],
  ["type", "\\b(?:[fiu]\\d+|bf16|bool|index|void|float|int|auto|tensor|vector|memref|ptr)\\b(?:[\\[<][^\\]>]*[\\]>])?"],
  ["word", "\\b(?:func|def|return|for|in|if|else|while|import|from|as|with|class|lambda|and|or|not|None"
    + "|True|False|const|struct|template|define|declare|private|kernel|at|step|to)\\b"],
  ["call", "\\b[A-Za-z_][\\w.]*(?=\\()"],
  ["number", "(?<![\\w.])-?\\d[\\w.]*"],
];
const TOKENS = Object.fromEntries(Object.entries(COMMENTS).map(([language, comment]) => {
  const kinds = [["comment", comment], ...KINDS].map(([kind, text]) => `(?<${kind}>${text})`);
  return [language, new RegExp(kinds.join("|"), "g")];
}));
const LINES = 200;  // coloured at once, so that the page stays responsive

function colour(box) {
  const tokens = TOKENS[box.dataset.lang];
  if (!tokens || box.dataset.coloured) return;
  box.dataset.coloured = "yes";
  const lines = all("i", box);
  const some = (start) => {
    lines.slice(start, start + LINES).forEach((line) => colourLine(line, tokens));
    if (start + LINES < lines.length) setTimeout(some, 0, start + LINES);
  };
  some(0);
}

function colourLine(line, tokens) {
  const reader = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (reader.nextNode()) texts.push(reader.currentNode);
  for (const text of texts) {
    const parts = [];
    let end = 0;
    for (const match of text.data.matchAll(tokens)) {
      const kind = Object.keys(match.groups).find((k) => match.groups[k] !== undefined);
      const part = document.createElement("span");
      part.className = "t-" + kind;
      part.textContent = match[0];
      parts.push(text.data.slice(end, match.index), part);
      end = match.index + match[0].length;
    }
    if (parts.length) text.replaceWith(...parts, text.data.slice(end));
  }
}
