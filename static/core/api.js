/**
 * HTTP calls to the device that served this page, with the device token and errors that can be shown.
 */

/** A refused or failed request. `status` is 0 if there was no answer at all. */
export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} message @param {number} [retryAfterS] */
  constructor(status, code, message, retryAfterS) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterS = retryAfterS;
  }
}

/** Longest wait for an answer; a model list may have to be asked from a slow provider. */
const WAIT_MS = 30_000;

export class Api {
  /**
   * @param {() => string|null} token
   * @param {typeof fetch} [fetcher]
   */
  constructor(token, fetcher = (...args) => fetch(...args)) {
    this.token = token;
    this.fetcher = fetcher;
  }

  get(path) {
    return this.#call('GET', path);
  }
  post(path, body) {
    return this.#call('POST', path, body);
  }
  put(path, body) {
    return this.#call('PUT', path, body);
  }
  patch(path, body) {
    return this.#call('PATCH', path, body);
  }
  delete(path) {
    return this.#call('DELETE', path);
  }

  async #call(method, path, body) {
    const headers = {};
    const token = this.token();
    if (token) headers.Authorization = `Bearer ${token}`;
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), WAIT_MS);
    try {
      const answer = await this.fetcher(path, {
        method,
        headers,
        signal: abort.signal,
        cache: 'no-store',
        credentials: 'omit',
        body: body === undefined ? undefined : JSON.stringify(body),
      });
      return await this.#read(answer);
    } catch (error) {
      if (error instanceof ApiError) throw error;
      throw new ApiError(0, 'unreachable', 'no answer from the device');
    } finally {
      clearTimeout(timer);
    }
  }

  async #read(answer) {
    const text = answer.status === 204 ? '' : await answer.text();
    let json = null;
    try {
      json = text ? JSON.parse(text) : null;
    } catch {
      // Not from Siskin, such as a proxy's page; the status has to do.
    }
    if (answer.ok) return json;
    const told = (json && json.error) || {};
    const retryAfter = Number(answer.headers.get('Retry-After')) || undefined;
    const message = told.message || `the device answered ${answer.status}`;
    throw new ApiError(answer.status, told.code || 'failed', message, retryAfter);
  }
}

/** @returns {string} an id for one message; works without a secure context */
export function newClientId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
