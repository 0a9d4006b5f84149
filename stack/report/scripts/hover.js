// What belongs to the place under the pointer: its source lines, kernels, ops and rounding error.
const hover = document.getElementById("hover");
const FEW = 3;

function told(e) {
  const some = (key, name) => {
    const held = words(e, key);
    const shown = held.slice(0, FEW).map(name);
    return held.length > FEW ? [...shown, `and ${held.length - FEW} more`] : shown;
  };
  const value = words(e, "n")[0];
  const lines = [];
  if (value) lines.push("%" + value + (value in data.errors ? `, error ${data.errors[value]}` : ""));
  if (e.dataset.ops) lines.push(e.dataset.ops);
  if (!e.dataset.l) lines.push(...some("s", title));
  lines.push(...some("k", (k) => `kernel ${1 + Number(k)}: ${data.kernels[k]}`));
  return lines.join("\n");
}

function tell(e, x, y) {
  const text = e ? told(e) : "";
  hover.hidden = !text;
  if (!text) return;
  hover.textContent = text;
  const [width, height] = [hover.offsetWidth, hover.offsetHeight];
  hover.style.left = Math.max(4, Math.min(x + 14, innerWidth - width - 4)) + "px";
  hover.style.top = (y + 22 + height > innerHeight ? y - height - 10 : y + 22) + "px";
}

document.addEventListener("mouseover", (event) => {
  tell(event.target.closest(".panes .pick, #memory .pick"), event.clientX, event.clientY);
});
document.addEventListener("scroll", () => tell(null), { passive: true, capture: true });

// rounding errors as an overlay: behind the lines of values, and as shades of boxes
const switched = document.getElementById("errors");

function showErrors(root) {
  if (!switched) return;
  const on = switched.checked;
  for (const e of all(".pick[data-n]", root)) {
    const known = words(e, "n").map((n) => data.errors[n]).filter((v) => v !== undefined);
    const most = Math.max(...known);
    if (on && known.length) e.dataset.e = most.toExponential(1); else delete e.dataset.e;
    // from one rounding of f32 (none) to one hundredth (all)
    const shade = on && most > 0 ? Math.min(1, Math.max(0, (Math.log10(most) + 8) / 6)) : 0;
    e.style.setProperty("--error", shade.toFixed(2));
  }
}
