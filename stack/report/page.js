"use strict";
// A choice is a line, a value or a kernel. Everything that belongs to it is marked in every view.
const all = (q, root = document) => [...root.querySelectorAll(q)];
const words = (e, key) => (e.dataset[key] || "").split(" ").filter(Boolean);
const panes = ["a", "b"].map((k) => document.getElementById("pane-" + k)).filter(Boolean);
const said = document.getElementById("said");
let choice = "";
let held = { s: new Set(), k: new Set() };

async function unfold(box) {
  if (!box.dataset.packed) return;
  const bytes = Uint8Array.from(atob(box.dataset.packed), (c) => c.charCodeAt(0));
  delete box.dataset.packed;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  box.innerHTML = await new Response(stream).text();
  mark(box);
}

function belongs(e) {
  const at = choice.indexOf(":");
  const [kind, name] = [choice.slice(0, at), choice.slice(at + 1)];
  if (kind === "line") return words(e, "s").includes(name);
  if (kind === "kernel") return words(e, "k").includes(name);
  if (kind !== "value") return false;
  if (e.dataset.n === name) return true;
  if (e.dataset.n && !e.matches(".box")) return false;
  const is = (key) => words(e, key).some((w) => held[key].has(w));
  return e.dataset.l ? is("s") : e.closest("tr, .view, .box") && e.dataset.k ? is("k") : false;
}

// the source lines and kernels of the chosen value, from any view
function gather() {
  held = { s: new Set(), k: new Set() };
  if (!choice.startsWith("value:")) return;
  for (const e of all(`[data-n="${CSS.escape(choice.slice(6))}"]`)) {
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

function show(pane, id) {
  const found = document.getElementById(id);
  const select = pane.querySelector("select");
  const view = pane.querySelector(".view");
  if (!found) return;
  select.value = id;
  const box = found.querySelector("pre").cloneNode(true);
  view.replaceChildren(box);
  unfold(box).then(() => { mark(box); reach(box); });
}

function reach(box) {
  const first = box.querySelector(".on");
  if (first) box.scrollTop = first.offsetTop - box.offsetTop - box.clientHeight / 3;
}

function follow() {
  // a view of one compiler's code shows its first kernel for the chosen line
  const lines = choice.startsWith("line:") ? [choice.slice(5)]
    : [...new Set(all(".pick.on").flatMap((e) => words(e, "l")))];
  for (const pane of panes) {
    const now = pane.querySelector("select").value.match(/^code-(\d+)-/);
    if (!now || !lines.length) continue;
    const kernel = choice.startsWith("kernel:") && now[1] === "0"
      ? document.getElementById("code-0-" + choice.slice(7)) : null;
    const fits = (d) => words(d, "of").some((w) => lines.includes(w));
    const next = kernel || all(`details[id^="code-${now[1]}-"]`).find(fits);
    if (next) show(pane, next.id);
  }
}

function choose(what, tell = true) {
  choice = what;
  gather();
  mark(document);
  follow();
  for (const box of all("#explore pre")) reach(box);
  const counts = [["[data-l]", "source lines"], ["#pane-a [data-n]", "values of view a"],
    ["#kernels tr", "kernels"]].map(([q, n]) => amount(all(q + ".on").length, n));
  const name = what.startsWith("line:") ? title(what.slice(5))
    : what.startsWith("kernel:") ? "kernel " + (1 + Number(what.slice(7))) : "%" + what.slice(6);
  if (tell) said.textContent = what ? `${name}: ${counts.join(", ")}` : "";
  remember();
}

const amount = (n, what) => `${n} ${n === 1 ? what.replace(/s( |$)/, "$1") : what}`;

function title(line) {
  const row = document.querySelector(`tr[data-s="${line}"] td`);
  const source = document.querySelector(`[data-l="${line}"]`);
  return row && /:\d+$/.test(row.textContent) ? row.textContent
    : source ? "line " + source.textContent.trim() : "line";
}

function pick(e) {
  if (e.dataset.n) choose("value:" + e.dataset.n);
  else if (e.dataset.l) choose("line:" + e.dataset.l);
  else if (e.closest("#kernels")) choose("kernel:" + words(e, "k")[0]);
  else if (words(e, "s").length) choose("line:" + words(e, "s")[0]);
}

function remember() {
  const parts = new URLSearchParams();
  if (choice) parts.set("choice", choice);
  for (const pane of panes) parts.set(pane.id.slice(5), pane.querySelector("select").value);
  history.replaceState(null, "", "#" + parts);
}

function recall() {
  const hash = decodeURIComponent(location.hash.slice(1));
  const target = hash && document.getElementById(hash);
  const parts = new URLSearchParams(target ? "" : location.hash.slice(1));
  for (const pane of panes) {
    const select = pane.querySelector("select");
    show(pane, parts.get(pane.id.slice(5)) || select.dataset.start || select.value);
  }
  const kept = parts.get("choice") || "";
  if (kept) choose(kept);
  if (target) {
    if (target.tagName === "DETAILS") target.open = true;
    target.scrollIntoView();
  }
}

function step(box, by) {
  const rows = all(".pick", box);
  const at = rows.indexOf(document.activeElement);
  const next = rows[at < 0 ? Math.max(0, rows.findIndex((r) => r.classList.contains("on")))
    : Math.min(rows.length - 1, Math.max(0, at + by))];
  if (next) { next.tabIndex = -1; next.focus({ preventScroll: false }); }
}

document.addEventListener("click", (event) => {
  if (event.target.closest("a, summary, select")) return;
  const e = event.target.closest(".pick");
  if (e) pick(e);
});
document.addEventListener("keydown", (event) => {
  const at = document.activeElement;
  const box = at && at.closest("pre");
  if (at && at.tagName === "SELECT") return;
  if (event.key === "Escape") choose("");
  else if ((event.key === "Enter" || event.key === " ") && at && at.matches(".pick")) {
    pick(at);
    event.preventDefault();
  } else if (box && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    step(box, event.key === "ArrowDown" ? 1 : -1);
    event.preventDefault();
  } else if ((event.key === "[" || event.key === "]") && panes.length) {
    const pane = (at && at.closest(".pane[id]:not(#pane-s)")) || panes[0];
    const select = pane.querySelector("select");
    const next = select.selectedIndex + (event.key === "]" ? 1 : -1);
    if (select.options[next]) { show(pane, select.options[next].value); remember(); }
  }
});
for (const pane of panes) {
  pane.querySelector("select").addEventListener("change", (event) => {
    show(pane, event.target.value);
    remember();
  });
}
for (const d of all("details")) {
  d.addEventListener("toggle", () => { if (d.open) all("pre", d).forEach(unfold); });
}
addEventListener("hashchange", recall);
recall();

// served by `stackc live`: polls for a newer page, and keeps the choice across reloads
const live = document.documentElement.dataset.live;
if (live) {
  setInterval(async () => {
    try {
      const answer = await (await fetch("news")).json();
      if (answer.version !== live) location.reload();
      said.classList.toggle("bad", Boolean(answer.error));
      if (answer.error) said.textContent = answer.error;
    } catch { said.textContent = "stackc live has ended"; }
  }, 700);
}

// kernels step by step: the slider shows one text at a time
for (const slider of all("input[data-steps]")) {
  slider.addEventListener("input", () => {
    all(".step", document.getElementById(slider.dataset.steps))
      .forEach((step, number) => {
        step.hidden = number !== Number(slider.value);
        if (!step.hidden) unfold(step.querySelector("pre"));
      });
  });
}
