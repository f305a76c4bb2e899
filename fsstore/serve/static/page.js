// The live tail, and keys. The page works without.
"use strict";

const POLL_MS = 2000;
const MOST_ROWS = 500;

const body = document.querySelector("[data-live]");
if (body) {
  const state = document.getElementById("live");
  const look = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch(`${body.dataset.live}&after=${body.dataset.after}`);
        if (answer.ok) {
          add(await answer.text());
          state.textContent = "live";
        } else {
          state.textContent = answer.status === 401 ? "stopped: log in again" : `waiting (${answer.status})`;
        }
      } catch {
        state.textContent = "waiting for the server";
      }
    }
    setTimeout(look, POLL_MS);
  };
  setTimeout(look, POLL_MS);
}

function add(html) {
  const made = document.createElement("template");
  made.innerHTML = html; // of this server, and escaped there; the page's policy runs no script in it
  const rows = [...made.content.querySelectorAll("tr")];
  const newest = rows.find((row) => row.dataset.at);
  if (!newest) return;
  body.dataset.after = newest.dataset.at;
  rows.forEach((row) => row.classList.add("new"));
  body.prepend(...rows);
  while (body.rows.length > MOST_ROWS) body.rows[body.rows.length - 1].remove();
}

const keys = document.getElementById("keys");
const button = document.getElementById("keys-button");
button.hidden = false;
button.addEventListener("click", () => keys.showModal());

function move(by) {
  const links = [...document.querySelectorAll("[data-row]")];
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(Math.max(at + by, 0), links.length - 1);
  links[next].focus();
  links[next].scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const search = document.querySelector("[data-search]");
  if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "?") keys.showModal();
  else if (event.key === "/" && search) search.focus();
  else {
    const links = document.querySelectorAll(`[data-key="${CSS.escape(event.key)}"]`);
    if (!links.length) return;
    links[links.length - 1].click();
  }
  event.preventDefault();
});
