// Chooses the view, polls the server, and confirms and sends the actions of the buttons.

import { h, tick } from "./charts.js";
import { Detail } from "./detail.js";
import { List } from "./list.js";
import { heard } from "./words.js";

const PIPELINE = /^[0-9a-f]{16}$/;
const EVERY = { list: 3000, detail: 2000, plan: 8000 };
const content = document.getElementById("content");
const said = document.getElementById("said");
const list = new List();
let view = null;
let timers = [];

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { headers: { Accept: "application/json" }, credentials: "same-origin", ...options });
  } catch {
    throw new Error("The server does not answer. It is asked again by itself.");
  }
  heard(Number(response.headers.get("X-EOS-Now")));
  if (response.status === 401) throw new Error("Your session has ended. Log in again, then reload the page.");
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(typeof body.detail === "string" ? body.detail : `The server answered ${response.status}.`);
  return body;
}

// Polls the server, at once and then again and again, while the page is visible and shows this view.
function follow(path, every, show, failed) {
  const shown = view;
  let waiting = false;
  const look = async () => {
    if (waiting || document.hidden || view !== shown) return;
    waiting = true;
    try {
      const answer = await ask(path);
      if (view === shown) show(answer);
    } catch (error) {
      if (view === shown) failed(error.message);
    } finally {
      waiting = false;
    }
  };
  look();
  timers.push(setInterval(look, every));
  return look;
}

let looks = [];

// Inside Airflow's UI a link names the pipeline in the outer address: copies that to the frame's own.
function lead() {
  if (location.hash) return;
  try {
    const outer = window.parent === window ? "" : window.parent.location.hash;
    if (PIPELINE.test(outer.replace(/^#\/?/, ""))) history.replaceState(null, "", outer);
  } catch {
    // the frame belongs to another origin
  }
}

function route() {
  timers.forEach(clearInterval);
  timers = [];
  const id = location.hash.replace(/^#\/?/, "");
  if (PIPELINE.test(id)) {
    view = new Detail(id, confirm);
    const shown = view;
    content.replaceChildren(view.element);
    const at = `api/pipelines/${id}`;
    looks = [
      follow(at, EVERY.detail, (answer) => shown.show(answer), (message) => shown.failed(message)),
      follow(`${at}/plan`, EVERY.plan, (answer) => shown.showPlan(answer), (message) => shown.showPlan({ error: message, open: [], alive: [], remarks: [], lines: [], unread: null })),
    ];
    window.scrollTo(0, 0);
  } else {
    view = list;
    content.replaceChildren(list.element);
    looks = [follow("api/pipelines", EVERY.list, (answer) => list.show(answer), (message) => list.failed(message))];
  }
}

// Shows what a button will do before it is done: the text and its confirmation token are the server's.
function confirm(id, action) {
  if (action.token === null) { tell(action.not_now); return; }
  const close = () => { dialog.close(); dialog.remove(); };
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const go = h("button", { type: "button", class: `primary action-${action.name}` }, action.label);
  go.addEventListener("click", async () => {
    go.disabled = true;
    try {
      const done = await ask(`api/pipelines/${id}/${action.name}`, { method: "POST", headers: { "X-EOS-Token": action.token } });
      close();
      tell(done.said);
      looks.forEach((look) => look());
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      go.disabled = false;
    }
  });
  const dialog = h("dialog", { "aria-labelledby": "asked" }, h("h2", { id: "asked" }, `${action.label}?`), h("ul", {}, action.says.map((each) => h("li", {}, each))), problem,
    h("div", { class: "buttons" }, h("button", { type: "button", autofocus: true, onclick: close }, "Cancel"), go));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function tell(words) {
  said.textContent = words;
  said.classList.add("shown");
  clearTimeout(tell.later);
  tell.later = setTimeout(() => said.classList.remove("shown"), 8000);
}

// Inside Airflow's UI the page takes over Airflow's colour theme, which can change without a reload.
function dress() {
  let outer;
  try {
    outer = window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    return; // the frame belongs to another origin
  }
  if (!outer) return;
  const wear = () => {
    const theme = ["dark", "light"].find((each) => outer.classList.contains(each));
    if (theme) document.documentElement.dataset.theme = theme;
  };
  wear();
  new MutationObserver(wear).observe(outer, { attributes: true, attributeFilter: ["class"] });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  view?.key(event);
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) looks.forEach((look) => look()); });
window.addEventListener("hashchange", route);
setInterval(() => { if (!document.hidden) tick(content); }, 1000);
dress();
lead();
route();
