// The search box marks lines, boxes and kernels that contain a text; Enter goes to the next one.
const searchBox = document.getElementById("search");
const found = document.getElementById("found");
const PLACES = ".panes pre i, #graph .box, #kernels tbody tr";
let at = -1;

function seek() {
  const asked = searchBox.value.trim().toLowerCase();
  for (const e of all(".hit, .now")) e.classList.remove("hit", "now");
  at = -1;
  found.textContent = "";
  if (!asked) return;
  const hits = all(PLACES).filter((e) => textOf(e).includes(asked));
  hits.forEach((e) => e.classList.add("hit"));
  found.textContent = hits.length ? amount(hits.length, "places") : "not found";
}

const textOf = (e) => [e.textContent, e.dataset.ops || "", e.dataset.n || "",
  ...words(e, "s").map(title)].join(" ").toLowerCase();

function next(by) {
  const hits = all(".hit");
  if (!hits.length) return;
  if (hits[at]) hits[at].classList.remove("now");
  at = at < 0 && by < 0 ? hits.length - 1 : (at + by + hits.length) % hits.length;
  hits[at].classList.add("now");
  hits[at].scrollIntoView({ block: "nearest", inline: "nearest" });
  found.textContent = `${at + 1} of ${amount(hits.length, "places")}`;
}

searchBox.addEventListener("input", seek);
searchBox.addEventListener("keydown", (event) => {
  if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
  else if (event.key === "Escape" && searchBox.value) { searchBox.value = ""; seek(); }
  else return;
  event.preventDefault();
  event.stopPropagation();
});
