// Clicks and keys; then the page shows what its address says.
function step(box, by) {
  const rows = all(".pick", box);
  const now = rows.indexOf(document.activeElement);
  const row = rows[now < 0 ? Math.max(0, rows.findIndex((r) => r.classList.contains("on")))
    : Math.min(rows.length - 1, Math.max(0, now + by))];
  if (row) { row.tabIndex = -1; row.focus({ preventScroll: false }); }
}

document.addEventListener("click", (event) => {
  if (event.target.closest("a, summary, select, label, button, input")) return;
  const e = event.target.closest(".pick");
  if (e) pick(e);
});
document.addEventListener("keydown", (event) => {
  const now = document.activeElement;
  const text = now && now.closest("pre");
  if (now && now.matches("select, input")) return;
  if (event.key === "Escape") { tell(null); choose(""); }
  else if (event.key === "/") searchBox.focus();
  else if ((event.key === "Enter" || event.key === " ") && now && now.matches(".pick")) pick(now);
  else if (text && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    step(text, event.key === "ArrowDown" ? 1 : -1);
  } else if ((event.key === "[" || event.key === "]") && panes.length) {
    const pane = (now && now.closest(".views .pane")) || panes[0];
    const list = pane.querySelector("select");
    const other = list.options[list.selectedIndex + (event.key === "]" ? 1 : -1)];
    if (other) select(pane, other.value);
  } else return;
  event.preventDefault();
});
for (const pane of panes) {
  pane.querySelector("select").addEventListener("change", (event) => select(pane, event.target.value));
}
for (const d of all("details")) {
  d.addEventListener("toggle", () => { if (d.open) all("pre", d).filter(isShown).forEach(unfold); });
}
document.getElementById("wrap").addEventListener("change", (event) => {
  document.body.classList.toggle("wrapped", event.target.checked);
});
if (switched) switched.addEventListener("change", () => showErrors(document));
addEventListener("hashchange", recall);
all("#pane-s pre, .steps pre").filter(isShown).forEach(unfold);
recall();
