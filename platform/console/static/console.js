// What every page does with a script: copy buttons, announcements, focus after a swap.
"use strict";

document.documentElement.classList.add("script");

const announce = (text) => {
  const announcer = document.getElementById("announcer");
  announcer.textContent = "";
  requestAnimationFrame(() => { announcer.textContent = text; });
};

const copy = async (button) => {
  const field = document.getElementById(button.dataset.copy);
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
    announce("Copied");
    button.textContent = "Copied";
  } catch {
    announce("Press Ctrl+C to copy the selected text");
    button.textContent = "Press Ctrl+C";
  }
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});

// A form that takes long says so, and is not sent twice.
document.addEventListener("submit", (event) => {
  const button = event.target.querySelector("[data-busy]");
  if (!button) return;
  announce(button.dataset.busy);
  button.textContent = button.dataset.busy;
  setTimeout(() => { button.disabled = true; }, 0);
});

// A page that came from the browser's cache is as it was left.
window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

document.addEventListener("htmx:afterSettle", (event) => {
  const part = document.getElementById(event.detail.target.id);
  if (!part) return;
  if (part.dataset.announce) announce(part.dataset.announce);
  // Whoever used a link inside the part would else be left on a link that is gone.
  const heading = part.querySelector("h2[tabindex]");
  if (heading) heading.focus();
});

// A part that refreshes itself stands still while that is paused, and while the keyboard is in it.
const pauses = document.querySelector("[data-pauses]");
const setPaused = (paused) => {
  pauses.setAttribute("aria-pressed", String(paused));
  document.getElementById("live-state").textContent = paused ? "Paused" : pauses.dataset.live;
};
if (pauses) {
  setPaused(matchMedia("(prefers-reduced-motion: reduce)").matches);
  pauses.addEventListener("click", () => setPaused(pauses.getAttribute("aria-pressed") !== "true"));
  document.addEventListener("htmx:beforeRequest", (event) => {
    const part = event.detail.elt;
    if (part.id !== pauses.dataset.pauses) return;
    const isPaused = pauses.getAttribute("aria-pressed") === "true";
    if (isPaused || part.contains(document.activeElement)) event.preventDefault();
  });
}

// A page that answers a form has what must be seen once: loading it again must not repeat the form.
if (document.getElementById("new-key")) history.replaceState(null, "", location.href);

// After an action the keyboard goes on where its outcome is.
const outcome = document.getElementById("problems")
  || document.querySelector("[aria-invalid='true']")
  || document.getElementById("notice");
if (outcome) outcome.focus();
