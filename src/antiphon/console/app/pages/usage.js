import { html, nothing } from "../../vendor/lit.js";
import { ServerError, get, list, withQuery } from "../lib/api.js";
import { formatCost, formatCount, formatDuration, formatTokens } from "../lib/format.js";
import { View, asError, showError } from "../lib/view.js";

const DAY = 86_400;
/** Seconds of each period, and the step of its chart. @type {Record<string, [number, keyof typeof STEPS]>} */
const PERIODS = { "a day": [DAY, "hour"], "a week": [7 * DAY, "day"], "a month": [30 * DAY, "day"], "a year": [365 * DAY, "week"] };
const STEPS = { hour: 3600, day: DAY, week: 7 * DAY };
const SCHEME = matchMedia("(prefers-color-scheme: dark)");
const MONDAY = 4 * DAY;
const GROUPS = { model: "model", project: "project", user: "user", key: "key", status: "status", asked: "name that was asked for", dialect: "dialect" };
const MEASURES = { requests: "Requests", failed: "Failed", output_tokens: "Output tokens", prompt_tokens: "Prompt tokens", cost_nano: "Cost", mean_ttft_ms: "First token (ms)" };
const MOST_LINES = 8;

/** Sums of usage over time, and by who or what caused it. */
class UsagePage extends View {
  static properties = { period: { state: true }, group: { state: true }, measure: { state: true }, report: { state: true }, series: { state: true }, names: { state: true }, problem: { state: true } };

  constructor() {
    super();
    this.period = "a week";
    this.group = /** @type {keyof typeof GROUPS} */ ("model");
    this.measure = /** @type {keyof typeof MEASURES} */ ("requests");
    /** @type {any} sums by group */
    this.report = null;
    /** @type {any} sums by time and group */
    this.series = null;
    /** @type {Map<string, string>} names of ids */
    this.names = new Map();
    /** @type {any} */
    this.problem = null;
    /** @type {any} */
    this.chart = null;
  }

  connectedCallback() {
    super.connectedCallback();
    addEventListener("resize", this.draw);
    SCHEME.addEventListener("change", this.draw);
    this.refresh();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    removeEventListener("resize", this.draw);
    SCHEME.removeEventListener("change", this.draw);
  }

  async refresh() {
    const [seconds, step] = PERIODS[this.period];
    const since = Math.floor(Date.now() / 1000) - seconds;
    const isWanted = this.beginLoad();
    try {
      const [report, series] = await Promise.all([
        get(withQuery("admin/v1/usage", { by: this.group, since, limit: 1000 })),
        get(withQuery("admin/v1/usage", { by: `${step},${this.group}`, since, limit: 10_000 })),
      ]);
      const lists = await Promise.all(["projects", "users", "keys"].map((name) => list(`admin/v1/${name}`).catch(() => [])));
      if (!isWanted()) return;
      [this.report, this.series] = [report, series];
      this.names = new Map(lists.flat().map((each) => [each.id, each.name ?? (each.note || each.prefix)]));
      this.problem = null;
    } catch (problem) {
      if (!isWanted()) return;
      this.report = null;
      this.problem = problem instanceof ServerError && problem.status === 404
        ? { message: "This server keeps no records, because it runs without keys. Start it with ANTIPHON_KEYS=true to see usage here." }
        : asError(problem);
    }
  }

  /** @param {object} changes */
  choose(changes) {
    Object.assign(this, changes);
    this.refresh();
  }

  /** @param {any} group */
  name(group) {
    const id = group.by[this.group];
    return id === null || id === "" ? "none" : this.names.get(id) ?? String(id);
  }

  render() {
    const options = (/** @type {Record<string, any>} */ values, /** @type {string} */ chosen) =>
      Object.entries(values).map(([name, label]) => html`<option value=${name} ?selected=${name === chosen}>${typeof label === "string" ? label : name}</option>`);
    return html`<div class="pad"><h1>Usage</h1>${showError(this.problem)}
      ${this.report ? html`<div class="row wrap filters">
        <label>Over <select @change=${(/** @type {any} */ event) => this.choose({ period: event.target.value })}>${options(PERIODS, this.period)}</select></label>
        <label>By <select @change=${(/** @type {any} */ event) => this.choose({ group: event.target.value })}>${options(GROUPS, this.group)}</select></label>
        <label>Chart <select @change=${(/** @type {any} */ event) => { this.measure = event.target.value; }}>${options(MEASURES, this.measure)}</select></label></div>
      <p>${this.describe(this.report.total)}</p>
      ${this.report.data.length ? html`<div class="chart" role="img" aria-label="${MEASURES[this.measure]} over time; the table has the sums"></div>${this.renderTable()}`
        : html`<p class="muted">Nothing was used in this time. Send a request from the page Chat, or choose a longer time.</p>`}` : this.problem ? nothing : html`<p class="muted">Loading …</p>`}</div>`;
  }

  /** @param {any} sums */
  describe(sums) {
    return `${formatCount(sums.requests)} ${sums.requests === 1 ? "request" : "requests"}, ${formatCount(sums.failed)} failed · ${formatTokens(sums.prompt_tokens, sums.output_tokens)}${this.report.currency ? ` · ${formatCost(sums.cost, this.report.currency)}` : ""}`;
  }

  renderTable() {
    return html`<div class="scroll" tabindex="0"><table class="list"><thead><tr><th>${GROUPS[this.group]}</th>${["Requests", "Failed", "Prompt", "Cached", "Output", "First token", "Total", "Cost"].map((label) => html`<th class="number">${label}</th>`)}</tr></thead>
      <tbody>${this.report.data.map((/** @type {any} */ group) => html`<tr><td>${this.name(group)}</td>
        ${[formatCount(group.requests), formatCount(group.failed), formatCount(group.prompt_tokens), formatCount(group.cached_tokens), formatCount(group.output_tokens),
          formatDuration(group.mean_ttft_ms), formatDuration(group.mean_total_ms), formatCost(group.cost, this.report.currency)].map((text) => html`<td class="number">${text}</td>`)}</tr>`)}</tbody></table></div>`;
  }

  /** @param {Map<string, unknown>} changed */
  updated(changed) {
    if (["series", "measure", "names"].some((name) => changed.has(name))) this.draw();
  }

  /** Draws the chart in the width and the colours of now. */
  draw = async () => {
    if (!this.querySelector(".chart")) return; // the library is loaded when it is first needed
    const { uPlot } = /** @type {any} */ (await import("../../vendor/charts.js"));
    const place = this.querySelector(".chart");
    if (!place) return;
    const { times, lines } = this.collectLines();
    this.chart?.destroy();
    place.replaceChildren();
    const colour = getComputedStyle(this).getPropertyValue("color");
    const light = matchMedia("(prefers-color-scheme: dark)").matches ? 70 : 50;
    const hues = lines.map((_, index) => `hsl(${(index * 137 + 230) % 360} 65% ${light}%)`);
    const axis = { stroke: colour, grid: { stroke: "#8884", width: 1 }, ticks: { stroke: "#8884" } };
    this.chart = new uPlot({
      width: place.clientWidth, height: 260, axes: [axis, { ...axis, size: 70 }], scales: { y: { range: [0, null] } },
      series: [{}, ...lines.map((line, index) => ({ label: line.name, stroke: hues[index], fill: undefined, width: 2, points: { show: times.length < 40 } }))],
    }, [times, ...lines.map((line) => line.values)], place);
  };

  /** Returns a line for each of the largest groups. @returns {{times: number[], lines: {name: string, values: number[]}[]}} */
  collectLines() {
    const [, step] = PERIODS[this.period];
    const seconds = STEPS[step];
    const offset = step === "week" ? MONDAY : 0; // 1970 began on a Thursday
    /** @type {number[]} */
    const times = [];
    for (let time = Math.floor((this.series.since - offset) / seconds) * seconds + offset; time < this.series.until; time += seconds) times.push(time);
    const scale = this.measure === "cost_nano" ? 1e-9 : 1;
    const lines = this.report.data.slice(0, MOST_LINES).map((/** @type {any} */ group) => ({
      name: this.name(group),
      values: times.map((time) => (this.series.data.find((/** @type {any} */ each) => Number(each.by[step]) === time && each.by[this.group] === group.by[this.group])?.[this.measure] ?? 0) * scale),
    }));
    return { times, lines };
  }
}

customElements.define("usage-page", UsagePage);
