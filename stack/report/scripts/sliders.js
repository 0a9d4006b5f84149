// Sliders show one text at a time, or mark one decision of a pass at a time.
function slide(slider) {
  const steps = all(":scope > .step", document.getElementById(slider.dataset.steps));
  steps.forEach((step, number) => {
    step.hidden = number !== Number(slider.value);
    if (!step.hidden) all("pre", step).forEach(unfold);
  });
  const jump = document.querySelector(`[data-jump="${slider.dataset.steps}"]`);
  if (jump) jump.value = slider.value;
}

function decide(slider) {
  const rows = all("li", document.getElementById(slider.dataset.decisions));
  rows.forEach((row, number) => row.classList.toggle("now", number === Number(slider.value)));
  const row = rows[slider.value];
  row.parentElement.scrollTop = row.offsetTop - row.parentElement.offsetTop - 40;
  if (row.matches(".pick")) pick(row);
  all("pre", row.closest(".step")).forEach(reach);
}

for (const slider of all("input[data-steps]")) {
  slider.addEventListener("input", () => slide(slider));
}
for (const slider of all("input[data-decisions]")) {
  slider.addEventListener("input", () => decide(slider));
}
for (const jump of all("[data-jump]")) {
  jump.addEventListener("change", () => {
    const slider = document.querySelector(`[data-steps="${jump.dataset.jump}"]`);
    slider.value = jump.value;
    slide(slider);
  });
}
