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
