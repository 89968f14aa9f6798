// @ts-check
/** Pure: budgets in words, and lines of usage added up. */
import { decimal } from './format.js';

const HOUR_S = 3600;

/** @param {any} tenant */
export function budget(tenant) {
  const used = tenant.gpu_hours_used;
  if (!tenant.gpu_hours) return { whole: 0, used, tone: 'run', words: `${decimal(used)} h used, no budget` };
  const per = tenant.gpu_hours_per === 'month' ? ' this month' : '';
  const part = used / tenant.gpu_hours;
  return {
    whole: tenant.gpu_hours,
    used,
    tone: part > 0.95 ? 'bad' : part > 0.8 ? 'wait' : 'run',
    words: `${decimal(used)} of ${decimal(tenant.gpu_hours)} h${per}`,
  };
}

/** GPU hours, hours of replicas without a request, and tokens of each payer. @param {any[]} lines */
export function usageByTenant(lines) {
  /** @type {Map<string, {gpuHours: number, idleHours: number, tokens: number}>} */
  const found = new Map();
  for (const line of lines) {
    const sum = found.get(line.payer) ?? { gpuHours: 0, idleHours: 0, tokens: 0 };
    const hours = line.gpu_seconds / HOUR_S;
    sum.gpuHours += hours;
    if (line.kind === 'idle') sum.idleHours += hours;
    sum.tokens += line.input_tokens + line.output_tokens;
    found.set(line.payer, sum);
  }
  return found;
}
