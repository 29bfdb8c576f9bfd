// The view of one pipeline: its state, its open work, the recovery plan, its newest batches.

import { h, journey, since, sparkline, stepsOf, timeLeft } from "./charts.js";
import { pill } from "./list.js";
import { count, duration, moment, now, rate } from "./words.js";

const LIVELY = new Set(["running", "draining"]);

export class Detail {
  constructor(id, act) {
    this.id = id;
    this.act = act; // (action) => shows the confirmation
    this.plan = null;
    this.parts = Object.fromEntries(["head", "facts", "open", "plan", "batches", "more"].map((name) => [name, { element: h("section", { class: `part-${name}` }), json: "" }]));
    this.element = h("div", { class: "sheet" }, h("nav", { "aria-label": "Back" }, h("a", { class: "back", href: "#/", "aria-keyshortcuts": "Escape" }, "← Pipelines")),
      Object.values(this.parts).map((part) => part.element));
  }

  show(detail) {
    this.detail = detail;
    const row = detail.row;
    document.title = `${row.name} · ${row.state}`;
    this.element.dataset.state = row.state;
    this.put("head", [row.name, row.state, row.reason, row.remarks, row.dag_id, detail.actions.map((each) => [each.name, each.not_now, each.says])], () => this.head(detail));
    this.put("facts", [row, detail.participants, this.plan?.unread], () => this.facts(detail));
    this.put("batches", [detail.batches, LIVELY.has(row.state) ? now() : 0], () => batches(detail));
    this.put("more", [detail.sources, detail.state_size], () => more(detail));
    this.showOpen();
  }

  showPlan(plan) {
    this.plan = plan;
    this.put("plan", [plan], () => planned(plan));
    if (this.detail) { this.put("facts", [this.detail.row, this.detail.participants, plan.unread], () => this.facts(this.detail)); this.showOpen(); }
  }

  failed(message) {
    this.put("head", message, () => [h("h1", {}, "Pipeline"), h("p", { class: "problem", role: "alert" }, message)]);
  }

  // A part is drawn anew only where its data has changed: else focus and selection would be lost.
  put(name, told, draw) {
    const json = JSON.stringify(told, (key, value) => (key === "looked_at_ms" || key === "made_at_ms" || key === "beat_at_ms" ? undefined : value));
    const part = this.parts[name];
    if (part.json === json && name !== "facts") return;
    part.json = json;
    const focused = part.element.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    part.element.replaceChildren(...[draw()].flat().filter(Boolean));
    if (focused) part.element.querySelector(`[data-name="${focused}"]`)?.focus();
  }

  head(detail) {
    const row = detail.row;
    return [
      h("div", { class: "title" }, h("h1", {}, row.name), pill(row.state), h("div", { class: "buttons" }, detail.actions.map((each) => this.button(each)))),
      h("p", { class: row.state === "failed" || row.state === "unreadable" ? "reason problem" : "reason" }, row.reason, row.dag_id ? h("span", { class: "muted" }, ` · task ${row.dag_id}.${row.task_id}`) : null),
      ...row.remarks.map((each) => h("p", { class: "reason" }, each)),
    ];
  }

  button(action) {
    return h("button", {
      type: "button", class: `action action-${action.name}`, "data-name": action.name, title: action.not_now || null, "aria-disabled": action.token === null ? "true" : null,
      onclick: () => { const newest = this.detail.actions.find((each) => each.name === action.name); this.act(this.id, newest ?? action); },
    }, action.label);
  }

  facts(detail) {
    const row = detail.row;
    const places = h("dl", { class: "places" }, fact("Checkpoint", h("code", {}, row.location)), detail.participants.map(delivered));
    if (row.state === "unreadable") return places;
    const beat = row.heartbeat;
    return [h("dl", { class: "facts" },
      fact("Last settled", row.batch === null ? "no batch yet" : [h("b", {}, `batch ${row.batch}`), h("small", {}, since(row.committed_at_ms, "", " ago"))]),
      fact("Rows/s", [h("b", {}, row.rows_per_s === null ? "–" : rate(row.rows_per_s)), sparkline(row.rates, 120, 24)]),
      fact("Lag", this.lag(row)),
      fact("In flight", row.in_flight === null ? "nothing" : [h("b", {}, `batch ${row.in_flight}`), h("small", {}, since(row.planned_at_ms, "planned ", " ago"))]),
      fact("Driver", beat ? [h("b", {}, beat.phase), h("small", {}, since(beat.beat_at_ms, "heartbeat ", " ago"), h("br"), `${beat.application_id} on ${beat.host}`)] : "never seen"),
      row.drain ? fact("Drain", [h("b", {}, `asked by ${row.drain.requested_by}`), h("small", {}, since(row.drain.requested_at_ms, "", " ago: "), row.drain.reason)]) : null,
    ), places];
  }

  lag(row) {
    const unread = this.plan?.unread ?? null;
    const planned = row.in_flight === null ? 0 : row.lag_rows;
    if (planned === null || (row.in_flight === null && unread === null)) return "not known";
    const total = planned + (unread ?? 0);
    return [h("b", {}, `${count(total)}${unread === null ? "+" : ""} rows`),
      h("small", {}, `${count(planned)} planned, ${unread === null ? "what is unread is not known" : `${count(unread)} unread`}`)];
  }

  showOpen() {
    const { promised, in_flight: batch } = this.detail.row;
    const open = this.plan && !this.plan.error ? this.plan.open : null;
    this.put("open", [open, promised, batch], () => openWork(open, promised, batch));
  }

  key(event) {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) location.hash = "#/";
  }
}

const fact = (name, what) => h("div", {}, h("dt", {}, name), h("dd", {}, what));
const delivered = (each) => fact(`Delivers to ${each.kind}`, [h("code", {}, each.target || each.name), h("small", {}, Object.entries(each.address).map(([what, value]) => h("span", { class: "pair" }, `${what.replaceAll("_", " ")} `, h("code", {}, value))))]);
const heading = (text, ...more) => h("div", { class: "heading" }, h("h2", {}, text), ...more);

// Where no system was asked: the sum of the open work, as the checkpoint has it.
const named = (promised, batch) => [`${count(promised.works)} pieces, ${count(promised.rows)} rows`, promised.participants.join(", "), `promised by batch ${batch}; whether it is still open was not asked`];

function openWork(open, promised, batch) {
  const title = heading("Open work", h("span", { class: "muted" }, open ? "as the systems list it" : "as the checkpoint names it"));
  if (open && !open.length) return [title, h("p", { class: "calm" }, "Nothing is open.")];
  if (!open && !promised) return [title, h("p", { class: "calm" }, "No decision of a batch in flight names any.")];
  const lines = open
    ? open.map((each) => h("tr", {}, h("td", {}, h("code", {}, each.key)), h("td", {}, each.participant), h("td", { class: "wide muted" }, each.places.join(", ")), h("td", {}, since(each.opened_at_ms, "", " ago")), h("td", { class: "c-open" }, timeLeft(each.opened_at_ms, each.ends_at_ms, each.key))))
    : [h("tr", {}, named(promised, batch).map((each, i) => h("td", { class: i === 2 ? "wide muted" : null }, each)), h("td", {}, since(promised.opened_at_ms, "", " ago")), h("td", { class: "c-open" }, timeLeft(promised.opened_at_ms, promised.ends_at_ms, "promised work")))];
  return [title, scrolled("Open work", table(["work", "participant", "where", "opened", "until its system ends it"], lines))];
}

function planned(plan) {
  const title = heading("Recovery plan", plan.error ? null : h("span", { class: "muted" }, `made ${moment(plan.made_at_ms)}: nothing was done`));
  if (plan.error) return [title, h("p", { class: plan.untold ? "calm" : "problem" }, plan.error)];
  const said = (name, each) => h("p", { class: "calm" }, h("b", {}, `${name}: `), each);
  const told = [title, plan.alive.map((sign) => said("Alive", sign)), plan.blocked.map((who) => said("Blocked", who)), h("p", { class: "muted" }, plan.headline)].flat();
  const remarks = plan.remarks.map((each) => h("p", { class: "muted" }, each));
  if (!plan.lines.length) return [...told, h("p", { class: "calm" }, "Nothing to do: nothing is open, nothing that was promised is missing."), ...remarks];
  const lines = plan.lines.map((each) => h("tr", {}, h("td", {}, h("span", { class: "verb", "data-action": each.action }, each.action)), h("td", {}, h("code", {}, each.work)), h("td", { class: "right" }, each.age), h("td", { class: "right" }, each.left), h("td", { class: "right" }, each.rows), h("td", { class: "wide" }, each.why)));
  return [...told, scrolled("Recovery plan", table(["action", "work", "age", "left", "rows", "why"], lines, new Set([2, 3, 4]))), ...remarks];
}

function batches(detail) {
  const title = heading("Batches", legend());
  if (!detail.batches.length) return [title, h("p", { class: "calm" }, "No batch is recorded yet.")];
  const lengths = detail.batches.filter((each) => each.committed_at_ms !== null).map((each) => stepsOf(each).at(-1).to - each.planned_at_ms);
  const scale = Math.max(...lengths, 1);
  const lines = detail.batches.map((each) => {
    const last = stepsOf(each).at(-1);
    const done = each.committed_at_ms !== null;
    return h("tr", { class: done ? null : "flying" },
      h("td", { class: "right batch" }, `#${each.batch}`), h("td", {}, moment(each.planned_at_ms)), h("td", { class: "right" }, each.rows === null ? "?" : count(each.rows)),
      h("td", { class: "wide" }, journey(each, scale)), h("td", { class: "right" }, done ? duration(last.to - each.planned_at_ms) : each.stage), h("td", {}, decisions(each)));
  });
  return [title, scrolled("Batches", table(["batch", "planned", "rows", `planned to committed, ${duration(scale)} wide`, "took", "decisions"], lines, new Set([0, 2, 4])))];
}

function decisions(batch) {
  if (!batch.attempts.length) return h("span", { class: "muted" }, batch.committed_at_ms === null ? "none yet" : "pruned");
  return batch.attempts.map((each) => h("span", {
    class: "verb", "data-action": each.verdict.toUpperCase(),
    title: `attempt ${each.attempt}, ${moment(each.decided_at_ms)}, by ${each.decided_by}${each.reason ? `: ${each.reason}` : ""}`,
  }, `${each.attempt} ${each.verdict}${each.works ? ` · ${count(each.works)} works` : ""}`));
}

const legend = () => h("span", { class: "legend" }, [["evaluate", "planned"], ["prepare", "prepared"], ["replay", "replayed"], ["settle", "decided, settled"]].map(([name, label]) => h("span", {}, h("i", { class: `step-${name}`, "aria-hidden": true }), label)));

function more(detail) {
  const told = [];
  const kafka = detail.sources.filter((each) => each.ends).flatMap((each) => Object.entries(each.ends));
  if (kafka.length) {
    const partition = ([number, at]) => h("span", { class: "pair" }, h("span", { class: "muted" }, `${number}: `), count(at));
    const lines = kafka.map(([topic, ends]) => h("tr", {}, h("td", {}, h("code", {}, topic)), h("td", { class: "wide" }, Object.entries(ends).map(partition))));
    told.push(heading("Read up to"), scrolled("Offsets", table(["topic", "offsets by partition"], lines)));
  }
  const size = detail.state_size;
  if (size) {
    const disk = size.file_bytes === null ? "" : `, ${megabytes(size.file_bytes)} of files`;
    told.push(heading("State"), h("p", {}, `${count(size.rows)} rows, ${megabytes(size.memory_bytes)} in memory${disk}, after batch ${size.batch_id}`));
  }
  return told;
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

function table(heads, lines, right = new Set()) {
  return h("table", { class: "plain" }, h("thead", {}, h("tr", {}, heads.map((each, i) => h("th", { scope: "col", class: right.has(i) ? "right" : null }, each)))), h("tbody", {}, lines));
}

const scrolled = (label, inner) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, inner);
