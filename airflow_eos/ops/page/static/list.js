// The list of pipelines, the most urgent first: filter, sort, keyboard.

import { h, since, sparkline, timeLeft } from "./charts.js";
import { ALIVE, NEEDS_SOMEBODY, STATES, count, now, rate } from "./words.js";

const PROMISED = "Promised, open: what the decisions of the batch in flight name, so rows that readers were promised. The bar runs out when the first system ends its work by itself; rows that are lost then are delivered again. Amber where no driver is alive to settle it.";

const COLUMNS = [
  { key: "state", label: "State", value: (row) => STATES.indexOf(row.state) },
  { key: "name", label: "Pipeline", value: (row) => row.name },
  { key: "committed", label: "Last settled", title: "The newest complete batch, and its age", value: (row) => -(row.committed_at_ms ?? -1) },
  { key: "trend", label: "Newest 16 batches", title: "Rows/s of the newest 16 batches over time: the right edge is now, and a pause lies at the bottom" },
  { key: "rate", label: "Rows/s", title: "Mean of the last minute", value: (row) => -(row.rows_per_s ?? -1), right: true },
  { key: "lag", label: "Lag", title: "Rows of the batch in flight. Nobody asks here what the input holds beyond that: see the pipeline's own view", value: (row) => -(row.lag_rows ?? -1), right: true },
  { key: "open", label: "Promised, open", title: PROMISED, value: (row) => row.promised?.ends_at_ms ?? Infinity },
];

export class List {
  constructor() {
    this.sort = { key: "state", down: false };
    this.words = "";
    this.only = "all";
    this.rows = new Map(); // id -> { json, element, row }
    this.board = null;
    this.element = this.frame();
  }

  frame() {
    this.filter = h("input", {
      type: "search", placeholder: "Filter by name, location, DAG", "aria-label": "Filter pipelines", "aria-keyshortcuts": "/",
      oninput: () => { this.words = this.filter.value.trim().toLowerCase(); this.arrange(); },
    });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Show by state" });
    this.body = h("tbody");
    this.heads = new Map();
    const head = h("tr", {}, COLUMNS.map((column) => this.heading(column)));
    this.table = h("table", { class: "list" }, h("caption", { class: "hidden" }, "Pipelines"), h("thead", {}, head), this.body);
    this.note = h("div", { class: "note" });
    this.legend = h("p", { class: "muted explained" }, PROMISED);
    this.remarks = h("div");
    this.freshness = h("span", { class: "muted" });
    return h("div", { class: "sheet" },
      h("header", { class: "top" }, h("h1", {}, "Pipelines"), this.freshness),
      h("div", { class: "tools" }, this.chips, h("label", { class: "search" }, this.filter, h("kbd", { "aria-hidden": true }, "/"))),
      this.remarks, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of pipelines" }, this.table), this.legend, this.note);
  }

  heading(column) {
    const sorts = column.value && h("button", { type: "button", title: column.title, onclick: () => this.sortBy(column.key) }, column.label);
    const cell = h("th", { scope: "col", class: `c-${column.key}${column.right ? " right" : ""}`, title: sorts ? null : column.title }, sorts || column.label);
    if (sorts) this.heads.set(column.key, cell);
    return cell;
  }

  sortBy(key) {
    this.sort = { key, down: this.sort.key === key && !this.sort.down };
    this.arrange();
  }

  show(board) {
    this.board = board;
    const seen = new Set();
    for (const row of board.rows) {
      seen.add(row.id);
      const json = JSON.stringify({ ...row, looked_at_ms: 0, late: isLate(row) });
      const known = this.rows.get(row.id);
      if (known?.json === json) { known.row = row; continue; }
      const element = line(row);
      if (known) {
        const focused = known.element.contains(document.activeElement);
        known.element.replaceWith(element);
        if (focused) element.querySelector("a").focus();
      }
      this.rows.set(row.id, { json, element, row });
    }
    for (const [id, known] of this.rows) if (!seen.has(id)) { known.element.remove(); this.rows.delete(id); }
    this.remarks.replaceChildren(...board.remarks.map((each) => h("p", { class: "remark" }, each)));
    this.freshness.textContent = `asked every 3 s${board.read_only ? " · read only" : ""}`;
    this.arrange();
  }

  failed(message) {
    this.freshness.textContent = "no answer: what was seen last";
    this.note.replaceChildren(h("p", { class: "problem", role: "alert" }, message));
  }

  arrange() {
    const column = COLUMNS.find((each) => each.key === this.sort.key);
    const all = [...this.rows.values()].map((each) => each.row);
    this.showChips(all);
    const wanted = all.filter((row) => this.wants(row));
    const order = this.sort.down ? -1 : 1;
    wanted.sort((a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * order || a.name.localeCompare(b.name);
    });
    this.legend.hidden = !wanted.some((row) => row.promised);
    const lines = wanted.map((row) => this.rows.get(row.id).element);
    const stands = this.body.children;
    if (lines.length !== stands.length || lines.some((each, i) => each !== stands[i])) {
      const focused = document.activeElement;
      this.body.replaceChildren(...lines);
      if (focused !== document.activeElement && this.body.contains(focused)) focused.focus();
    }
    for (const [key, cell] of this.heads) {
      if (key === this.sort.key) cell.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    if (this.board) this.note.replaceChildren(...this.noteOn(all.length, wanted.length));
  }

  wants(row) {
    if (this.only === "attention" ? !NEEDS_SOMEBODY.has(row.state) : this.only !== "all" && row.state !== this.only) return false;
    return !this.words || `${row.name} ${row.location} ${row.dag_id ?? ""} ${row.state}`.toLowerCase().includes(this.words);
  }

  showChips(all) {
    const of = Map.groupBy(all, (row) => row.state);
    const attention = all.filter((row) => NEEDS_SOMEBODY.has(row.state)).length;
    const chips = [["all", "All", all.length], ["attention", "Need somebody", attention],
      ...STATES.filter((state) => of.has(state)).map((state) => [state, state, of.get(state).length])];
    const told = JSON.stringify([chips, this.only]);
    if (told === this.toldChips) return;
    this.toldChips = told;
    this.chips.replaceChildren(...chips.map(([key, label, number]) => h("button", {
      type: "button", class: "chip", "data-state": key, "aria-pressed": String(this.only === key),
      onclick: () => { this.only = this.only === key ? "all" : key; this.arrange(); },
    }, label, " ", h("b", {}, count(number)))));
    document.title = attention ? `(${attention}) Pipelines` : "Pipelines";
  }

  noteOn(all, shown) {
    if (this.board.pending) return [h("p", { class: "muted" }, `${count(this.board.pending)} more: their stores have not answered yet.`)];
    if (!all) return [h("div", { class: "empty" }, h("h2", {}, "No pipeline yet"),
      h("p", {}, "Pipelines show here by themselves: each DAG with a SparkStreamingOperator is one, for who may read that DAG."))];
    if (!shown) return [h("div", { class: "empty" }, h("h2", {}, "Nothing fits"), h("p", {}, `None of ${count(all)} pipelines fits this filter.`),
      h("button", { type: "button", onclick: () => { this.filter.value = this.words = ""; this.only = "all"; this.arrange(); } }, "Show all"))];
    return [];
  }

  key(event) {
    const typing = event.target === this.filter;
    if (event.key === "/" && !typing) { event.preventDefault(); this.filter.focus(); return; }
    if (event.key === "Escape" && typing) { this.filter.value = this.words = ""; this.arrange(); this.filter.blur(); return; }
    const steps = { ArrowDown: 1, ArrowUp: -1, ...(typing ? {} : { j: 1, k: -1 }) };
    if (!(event.key in steps)) return;
    const links = [...this.body.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    const next = links[at < 0 ? 0 : at + steps[event.key]];
    if (next) { event.preventDefault(); next.focus(); next.closest("tr").scrollIntoView({ block: "nearest" }); }
  }
}

export function pill(state) {
  return h("span", { class: "pill", "data-state": state }, h("i", { "aria-hidden": true }), state);
}

// Whether the row is an older one, as its store is slow to answer.
const isLate = (row) => row.state !== "unreadable" && now() - row.looked_at_ms > 15000;

// Where a location is too long, its end is shown: the end tells it from the others.
const place = (location) => h("span", { class: "sub place", title: location }, h("bdi", {}, location));

// That nobody watches is said beside a pipeline that somebody was to watch.
const unwatched = (row) => (row.watch?.is_missed ? [`watched by ${row.watch.said}`] : []);
const remarks = (row) => [...row.remarks, ...unwatched(row)];
const why = (row) => [row.reason, ...remarks(row)].join(" · ");

// The right edge of a line of a driver that lives is now; of another one, its last sign.
const until = (row) => (ALIVE.has(row.state) ? now() : 0);

function line(row) {
  const settled = row.batch === null ? h("span", { class: "muted" }, "none yet")
    : [h("span", { class: "batch" }, `#${row.batch}`), " ", since(row.committed_at_ms, "", " ago")];
  const known = row.state !== "unreadable";
  return h("tr", { "data-id": row.id, "data-state": row.state },
    h("td", { class: "c-state" }, pill(row.state), isLate(row) ? h("span", { class: "sub" }, since(row.looked_at_ms, "seen ", " ago")) : null),
    h("td", { class: "c-name" }, h("a", { href: `#/${row.id}` }, row.name),
      NEEDS_SOMEBODY.has(row.state) || row.state === "looking" || remarks(row).length ? h("span", { class: "sub why", title: why(row) }, why(row)) : place(row.location)),
    h("td", { class: "c-committed" }, known ? settled : ""),
    h("td", { class: "c-trend" }, sparkline(row.rates, until(row))),
    h("td", { class: "c-rate right" }, row.rows_per_s === null ? h("span", { class: "muted" }, "–") : rate(row.rows_per_s)),
    h("td", { class: "c-lag right" }, !known || row.in_flight === null ? "" : row.lag_rows === null ? "?" : row.lag_rows ? count(row.lag_rows) : h("span", { class: "muted" }, "0")),
    h("td", { class: "c-open" }, row.promised ? timeLeft(row.promised.opened_at_ms, row.promised.ends_at_ms, row.name) : h("span", { class: "muted" }, known ? "none" : "")));
}
