// Keys: / search, j and k rows, Enter opens, x chooses, g and a letter goes to a page, ? shows this.
import { nextMode } from "./times.js";

const KEYS = [
  ["/", "search"], ["j  k", "next and previous row"], ["Enter", "open the row"], ["x", "choose the row"],
  ["g o  g q  g j", "overview, queues, jobs"], ["g d  g s", "dead letters, streams"],
  ["r", "reload"], ["t", "times: ago, UTC, local"], ["?", "these keys"],
];
const PAGES = { o: "", q: "queues", d: "dead", j: "jobs", s: "streams", w: "workers", c: "schedules" };
let wentFor = 0;

const rows = () => [...document.querySelectorAll("#main tbody tr")];
const chosen = () => rows().findIndex((row) => row.getAttribute("aria-selected") === "true");

function move(step) {
  const all = rows();
  if (!all.length) return;
  const before = chosen();
  const at = Math.min(all.length - 1, Math.max(0, before < 0 ? (step > 0 ? 0 : all.length - 1) : before + step));
  if (before >= 0) all[before].removeAttribute("aria-selected");
  all[at].setAttribute("aria-selected", "true");
  all[at].scrollIntoView({ block: "nearest" });
}

function help() {
  let dialog = document.getElementById("keys");
  if (!dialog) {
    dialog = document.createElement("dialog");
    dialog.id = "keys";
    dialog.setAttribute("aria-label", "Keys");
    const table = document.createElement("table");
    for (const [key, text] of KEYS) {
      const row = table.insertRow();
      const name = document.createElement("kbd");
      name.textContent = key;
      row.insertCell().append(name);
      row.insertCell().append(text);
    }
    dialog.append(table);
    dialog.addEventListener("click", () => dialog.close());
    document.body.append(dialog);
  }
  if (dialog.open) dialog.close(); else dialog.showModal();
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const target = event.target;
  if (target.matches("input:not([type=checkbox]), select, textarea")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  const row = rows()[chosen()];
  if (wentFor && Date.now() - wentFor < 1200 && event.key in PAGES) {
    const root = document.querySelector("a.brand").getAttribute("href");
    location.assign(root + PAGES[event.key]);
  } else if (event.key === "/") document.querySelector("input[type=search]").focus();
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "x") row?.querySelector("input[type=checkbox]")?.click();
  else if (event.key === "Enter" && row && !target.closest("a, button")) row.querySelector("a")?.click();
  else if (event.key === "r") location.reload();
  else if (event.key === "t") nextMode();
  else if (event.key === "?") help();
  else if (event.key !== "g") return;
  wentFor = event.key === "g" ? Date.now() : 0;
  event.preventDefault();
}

export function startKeys() {
  document.addEventListener("keydown", press);
  document.addEventListener("change", (event) => {
    if (!event.target.matches("input[data-all]")) return;
    const table = event.target.closest("table");
    for (const each of table.querySelectorAll("input[name=id]")) each.checked = event.target.checked;
  });
}
