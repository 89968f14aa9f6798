// @ts-check
/** The lines of a job's GPUs, where the cluster measures them. */

/** @param {{job: any}} props */
export function JobLines() {
  return null;
}
