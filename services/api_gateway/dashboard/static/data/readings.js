// @ts-check
/** Readings of devices, asked of their nodes while a page shows them. Nodes keep the last readings only,
 * so the lines begin with the page. */
import { useEffect, useState } from 'preact/hooks';
import { get, segment } from './api.js';
import { moment } from './router.js';

const EVERY_MS = 5000;
const NODES_MAX = 8;
const POINTS_MAX = 720;

/** @typedef {{times: number[], latest: Map<string, any>, lines: Map<string, any[]>, version: number}} Trail */

/** @param {string[]} nodes @param {string[]|null} uuids only these devices */
export function useReadings(nodes, uuids) {
  const [trail, setTrail] = useState(/** @type {Trail} */ ({ times: [], latest: new Map(), lines: new Map(), version: 0 }));
  const asked = nodes.slice(0, NODES_MAX);
  const key = `${asked.join()}|${uuids?.join() ?? ''}`;
  useEffect(() => {
    if (moment.value || !asked.length) return undefined;
    const mine = /** @type {Trail} */ ({ times: [], latest: new Map(), lines: new Map(), version: 0 });
    let left = false;
    const look = async () => {
      if (document.hidden) return;
      const answers = await Promise.all(asked.map((node) => get(`/v1/nodes/${segment(node)}/readings`).catch(() => null)));
      const devices = answers.flatMap((answer) => answer?.readings ?? []).filter((each) => !uuids || uuids.includes(each.uuid));
      if (left || !devices.length) return;
      note(mine, devices);
      setTrail({ ...mine, version: mine.times.length + Math.random() });
    };
    look();
    const timer = setInterval(look, EVERY_MS);
    return () => {
      left = true;
      clearInterval(timer);
    };
  }, [key, moment.value]);
  return trail;
}

/** @param {Trail} trail @param {any[]} devices */
function note(trail, devices) {
  trail.times.push(Date.now() / 1000);
  for (const device of devices) {
    trail.latest.set(device.uuid, device);
    const line = trail.lines.get(device.uuid) ?? Array.from({ length: trail.times.length - 1 }, () => null);
    line.push(device);
    trail.lines.set(device.uuid, line);
  }
  for (const line of trail.lines.values()) if (line.length < trail.times.length) line.push(null);
  if (trail.times.length <= POINTS_MAX) return;
  trail.times.shift();
  for (const line of trail.lines.values()) line.shift();
}
