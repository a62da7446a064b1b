/**
 * Reads what Prometheus reads, as far as the page of models shows it.
 *
 * @typedef {{name: string, labels: Record<string, string>, value: number}} Sample
 * @typedef {{model: string, isUp: boolean, running: number, queued: number, cells: number, used: number, cached: number,
 *   decoded: number, hits: number, admitted: number, drafts: number, accepted: number, stepGap: number | null}} Engine
 * @typedef {{model: string, route: string, inFlight: number, isResting: boolean, attempts: number, failed: number}} Route
 */

/** @param {string} text @returns {Sample[]} */
export function readSamples(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)]
      .map(([, name, value]) => [name, value.replace(/\\(.)/g, (_, sign) => (sign === "n" ? "\n" : sign))]));
    samples.push({ name: found[1], labels, value: Number(found[3]) });
  }
  return samples;
}

/** @param {Sample[]} samples @returns {Engine[]} */
export function listEngines(samples) {
  const get = (/** @type {string} */ name, /** @type {string} */ model) =>
    samples.find((sample) => sample.name === `antiphon_engine_${name}` && sample.labels.model === model)?.value ?? 0;
  return samples.filter(({ name }) => name === "antiphon_engine_up").map(({ labels: { model }, value }) => ({
    model, isUp: value === 1, running: get("running", model), queued: get("queued", model), cells: get("cells", model), used: get("cells_used", model),
    cached: get("cells_cached", model), decoded: get("decoded_tokens_total", model), hits: get("prefix_hits_total", model),
    admitted: get("admitted_total", model), drafts: get("drafts_total", model), accepted: get("accepted_drafts_total", model),
    stepGap: get("step_gap_seconds_count", model) ? get("step_gap_seconds_sum", model) / get("step_gap_seconds_count", model) : null,
  }));
}

/** @param {Sample[]} samples @returns {Route[]} */
export function listRoutes(samples) {
  return samples.filter(({ name }) => name === "antiphon_route_in_flight").map(({ labels: { model, route }, value }) => {
    const own = samples.filter(({ labels }) => labels.model === model && labels.route === route);
    const attempts = own.filter(({ name }) => name === "antiphon_route_attempts_total");
    const sum = (/** @type {Sample[]} */ some) => some.reduce((total, sample) => total + sample.value, 0);
    return {
      model, route, inFlight: value, isResting: own.some(({ name, value: number }) => name === "antiphon_route_unavailable" && number > 0),
      attempts: sum(attempts), failed: sum(attempts.filter(({ labels }) => labels.outcome !== "ok" && labels.outcome !== "cancelled")),
    };
  });
}
