// Views show one of the texts of the page. Long texts are packed, and unpacked when they are shown.
const panes = all(".views .pane");
const together = document.getElementById("together");

const isShown = (box) => !box.closest("[hidden], details:not([open])");

async function unfold(box) {
  if (box.dataset.packed) {
    const bytes = Uint8Array.from(atob(box.dataset.packed), (c) => c.charCodeAt(0));
    delete box.dataset.packed;
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    box.innerHTML = await new Response(stream).text();
    mark(box);
  }
  showErrors(box);
  colour(box);
}

function show(pane, id) {
  const found = document.getElementById(id);
  const select = pane.querySelector("select");
  if (!found) return;
  select.value = id;
  const box = found.querySelector("pre").cloneNode(true);
  pane.querySelector(".view").replaceChildren(box);
  box.addEventListener("scroll", () => scrollOthers(pane, box), { passive: true });
  unfold(box).then(() => { mark(box); reach(box); seek(); });
}

// shows a text in one view, and the same stage of the other runs in their views
function select(pane, id) {
  show(pane, id);
  const name = id.replace(/^r\d+-/, "");
  if (together && together.checked && !name.startsWith("code-")) {
    panes.forEach((other, n) => {
      if (other !== pane) show(other, (n ? `r${n}-` : "") + name);
    });
  }
  remember();
}

let leader = null;  // the view that the pointer or the focus is in
for (const pane of panes) {
  for (const event of ["pointerenter", "focusin"]) pane.addEventListener(event, () => { leader = pane; });
}

// scrolls the views of other runs to the value at the top of this one
function scrollOthers(pane, box) {
  if (!together || !together.checked || leader !== pane) return;
  const top = all("[data-n]", box).find((e) => e.offsetTop - box.offsetTop >= box.scrollTop);
  if (!top) return;
  for (const other of panes) {
    const view = other !== pane && other.querySelector("pre");
    const same = view && view.querySelector(`[data-n="${CSS.escape(top.dataset.n)}"]`);
    if (same) view.scrollTop = same.offsetTop - view.offsetTop - (top.offsetTop - box.offsetTop - box.scrollTop);
  }
}

function reach(box) {
  const first = box.querySelector(".on");
  if (first) box.scrollTop = first.offsetTop - box.offsetTop - box.clientHeight / 3;
}

// a view of one compiler's code shows its first kernel for the chosen line
function follow() {
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

// the address holds the choice and the views
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
    const list = pane.querySelector("select");
    const asked = parts.get(pane.id.slice(5));
    show(pane, document.getElementById(asked) ? asked : list.dataset.start || list.value);
  }
  const kept = parts.get("choice") || "";
  if (kept) choose(kept);
  if (target) {
    if (target.tagName === "DETAILS") target.open = true;
    target.scrollIntoView();
  }
}
