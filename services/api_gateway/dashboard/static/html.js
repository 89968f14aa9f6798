// @ts-check
/** Preact's elements from tagged templates: what every part and page imports. */
import htm from 'htm';
import { h } from 'preact';

export const html = htm.bind(h);
