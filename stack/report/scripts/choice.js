// A choice is a line, a value or a kernel. Everything that belongs to it is marked in every view.
const all = (q, root = document) => [...root.querySelectorAll(q)];
const words = (e, key) => (e.dataset[key] || "").split(" ").filter(Boolean);
const data = JSON.parse(document.getElementById("data").textContent);
const said = document.getElementById("said");
let choice = "";
let held = { s: new Set(), k: new Set() };

function belongs(e) {
  const at = choice.indexOf(":");
  const [kind, name] = [choice.slice(0, at), choice.slice(at + 1)];
  if (kind === "line") return words(e, "s").includes(name);
  if (kind === "kernel") return words(e, "k").includes(name);
  if (kind !== "value") return false;
  if (words(e, "n").includes(name)) return true;
  if (e.dataset.n && !e.matches(".box")) return false;
  const is = (key) => words(e, key).some((w) => held[key].has(w));
  return e.dataset.l ? is("s") : e.closest("tr, .view, .box") && e.dataset.k ? is("k") : false;
}

// the source lines and kernels of the chosen value, from any view; a box may stand for many layers
function gather() {
  held = { s: new Set(), k: new Set() };
  if (!choice.startsWith("value:")) return;
  const named = all(`[data-n~="${CSS.escape(choice.slice(6))}"]`);
  const own = named.filter((e) => !e.matches(".box"));
  for (const e of own.length ? own : named) {
    for (const key of ["s", "k"]) words(e, key).forEach((w) => held[key].add(w));
  }
}

function mark(root) {
  for (const e of all(".pick", root)) {
    const on = Boolean(choice) && belongs(e);
    e.classList.toggle("on", on);
    if (on) e.setAttribute("aria-current", "true"); else e.removeAttribute("aria-current");
  }
}

function choose(what, tell = true) {
  choice = what;
  gather();
  mark(document);
  follow();
  for (const box of all("#explore pre")) reach(box);
  reachGraph();
  const counts = [["[data-l]", "source lines"], ["#pane-a [data-n]", "values of view a"],
    ["#kernels tr", "kernels"]].map(([q, n]) => amount(all(q + ".on").length, n));
  const name = what.startsWith("line:") ? title(what.slice(5))
    : what.startsWith("kernel:") ? "kernel " + (1 + Number(what.slice(7))) : "%" + what.slice(6);
  if (tell) said.textContent = what ? `${name}: ${counts.join(", ")}` : "";
  remember();
}

const amount = (n, what) => `${n} ${n === 1 ? what.replace(/s( |$)/, "$1") : what}`;
const title = (line) => data.lines[line] || "line";

function pick(e) {
  if (e.dataset.n) choose("value:" + words(e, "n")[0]);
  else if (e.dataset.l) choose("line:" + e.dataset.l);
  else if (e.closest("#kernels")) choose("kernel:" + words(e, "k")[0]);
  else if (words(e, "s").length) choose("line:" + words(e, "s")[0]);
}
