// The graph is moved by dragging and scrolling, and scaled by its buttons, + and -, or Ctrl and the wheel.
const canvas = document.querySelector(".canvas");
const drawing = canvas && canvas.querySelector("svg");
let scale = 1;

function zoom(to) {
  const view = drawing.viewBox.baseVal;
  const middle = [0, 1].map((i) => (i ? canvas.scrollTop + canvas.clientHeight / 2
    : canvas.scrollLeft + canvas.clientWidth / 2) / scale);
  scale = Math.min(3, Math.max(0.15, to));
  drawing.style.width = view.width * scale + "px";
  drawing.style.height = view.height * scale + "px";
  canvas.scrollLeft = middle[0] * scale - canvas.clientWidth / 2;
  canvas.scrollTop = middle[1] * scale - canvas.clientHeight / 2;
}

const fit = () => canvas.clientWidth / drawing.viewBox.baseVal.width;

function reachGraph() {
  const first = canvas && canvas.querySelector(".box.on");
  if (!first) return;
  const [frame, place] = [canvas.getBoundingClientRect(), first.getBoundingClientRect()];
  canvas.scrollLeft += place.left + place.width / 2 - frame.left - frame.width / 2;
  canvas.scrollTop += place.top + place.height / 2 - frame.top - frame.height / 2;
}

if (canvas) {
  zoom(Math.min(1, Math.max(0.7, fit())));
  canvas.scrollTop = 0;
  for (const button of all("[data-zoom]")) {
    button.addEventListener("click", () => {
      zoom(button.dataset.zoom === "fit" ? fit() : scale * Number(button.dataset.zoom));
    });
  }
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(scale * (event.deltaY < 0 ? 1.1 : 0.9));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const by = { "+": 1.25, "=": 1.25, "-": 0.8 }[event.key];
    if (by) zoom(scale * by);
    else if (event.key === "0") zoom(fit());
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons !== 1 || event.pointerType !== "mouse") return;
    canvas.scrollLeft -= event.movementX;
    canvas.scrollTop -= event.movementY;
  });
}
