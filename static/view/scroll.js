/**
 * The one owner of the log's scroll position.
 *
 * Following: the end stays in view. Reading: what the reader looks at does not move, whatever is added,
 * dropped or resized around it, by the rectangle of a block that survives; the browser's own anchoring is
 * off, since Safari has none. Following is left by the reader's own upward move only, and taken up again at
 * the very end or by the button: never guessed from distance. More is loaded at the edge to which the reader
 * moves, so that two edges that are near at once do not load and drop the same rows for ever.
 */

/** Further than any log is high; writing it needs no reading of the height. */
const END = 1e9;
/** Sub-pixel positions count as the end. */
const SLACK_PX = 2;
/** Between what was opened and the edge of the view. */
const ROOM_PX = 16;
/** A scroll event this near to the last is the same movement. */
const STILL_MS = 120;
const UP = ['ArrowUp', 'PageUp', 'Home'];
const DOWN = ['ArrowDown', 'PageDown', ' '];

export class Scroller {
  /**
   * @param {HTMLElement} box  scrolls
   * @param {HTMLElement} content  holds the items
   * @param {object} on
   * @param {() => boolean} on.following
   * @param {() => boolean} on.canReturn  nothing newer exists than what is held
   * @param {(follow: boolean) => void} on.follow
   * @param {(edge: 'older'|'newer') => void} on.near
   */
  constructor(box, content, on) {
    this.box = box;
    this.content = content;
    this.on = on;
    this.last = 0;
    this.own = -1;
    this.movedAt = 0;
    this.touching = false;
    this.touchY = 0;
    /** the reader's last move: -1 up, 1 down */
    this.way = 0;
    /** what the reader looks at, and where it was: `{node, top}` */
    this.mark = null;
    this.#listen();
  }

  #listen() {
    const passive = { passive: true };
    this.box.addEventListener('scroll', () => this.#scrolled(), passive);
    this.box.addEventListener('wheel', (event) => this.#pushed(Math.sign(event.deltaY)), passive);
    this.box.addEventListener(
      'touchstart',
      (event) => {
        this.touching = true;
        this.touchY = event.touches[0].clientY;
      },
      passive,
    );
    this.box.addEventListener(
      'touchmove',
      (event) => {
        const y = event.touches[0].clientY;
        if (Math.abs(y - this.touchY) > 0) this.#pushed(Math.sign(this.touchY - y));
        this.touchY = y;
      },
      passive,
    );
    for (const end of ['touchend', 'touchcancel']) {
      this.box.addEventListener(
        end,
        () => {
          this.touching = false;
        },
        passive,
      );
    }
    this.box.addEventListener('keydown', (event) => {
      if (event.target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName))
        return;
      if (UP.includes(event.key) || (event.key === ' ' && event.shiftKey)) this.#pushed(-1);
      else if (DOWN.includes(event.key)) this.#pushed(1);
      if (event.key === 'End') this.on.follow(true);
    });
    const resized = new ResizeObserver(() => this.#resized());
    resized.observe(this.content);
    resized.observe(this.box);
  }

  get #toEnd() {
    return this.box.scrollHeight - this.box.clientHeight - this.box.scrollTop;
  }

  /** The reader pushes: -1 up, 1 down. */
  #pushed(way) {
    this.way = way || this.way;
    if (way < 0 && this.on.following()) {
      // From here on movement is the reader's: what following scrolled just now is not a move back to the
      // end.
      this.last = this.box.scrollTop;
      this.on.follow(false);
      this.#edges();
    } else if (way > 0 ? this.#toEnd <= SLACK_PX : this.box.scrollTop <= 0) {
      // Nothing will scroll.
      if (way > 0 && this.on.canReturn()) this.on.follow(true);
      this.#edges();
    }
  }

  #scrolled() {
    const top = this.box.scrollTop;
    const moved = top - this.last;
    this.last = top;
    this.#look();
    if (Math.abs(top - this.own) < 1) return;
    this.own = -1;
    this.movedAt = performance.now();
    this.way = Math.sign(moved) || this.way;
    if (this.on.following()) {
      // What shrinks below the reader clamps the position: that is at the end, and not the reader's move.
      if (moved < -0.5 && this.#toEnd > SLACK_PX) this.on.follow(false);
    } else if (moved > 0 && this.#toEnd <= SLACK_PX && this.on.canReturn()) {
      this.on.follow(true);
    }
    this.#edges();
  }

  #edges() {
    if (this.on.following()) return;
    const { scrollTop, clientHeight } = this.box;
    const toEnd = this.#toEnd;
    // On a tall screen a window is not much higher than what is seen: what goes at the other end must be out
    // of sight.
    const near = Math.min(clientHeight, (scrollTop + toEnd) / 4);
    if (this.way < 0 && scrollTop <= near) this.on.near('older');
    if (this.way > 0 && toEnd <= near + SLACK_PX) this.on.near('newer');
  }

  /** The edges may be near without any movement: after rows came or went. */
  look() {
    this.#edges();
  }

  /** A finger or its momentum moves the log; iOS ignores what is written meanwhile. */
  get moving() {
    return this.touching || performance.now() - this.movedAt < STILL_MS;
  }

  /** Keeps the end in view, if following. */
  pin() {
    // A page without a log is read from its top.
    if (!this.on.following() || this.content.hidden) return;
    // Nothing is read back: that would lay the page out at once, for every token.
    this.box.scrollTop = END;
  }

  /** Runs a change of the items; afterwards the end, or what the reader looked at, is where it was. */
  keep(change) {
    // At the end the observer sees the column change, once the page is laid out anyway.
    if (this.on.following()) return change();
    // What was resized since the page was last laid out is not known here otherwise.
    this.#restore();
    const marks = this.#marks();
    change();
    const mark = marks.find(({ node }) => node.isConnected);
    if (mark) this.#shift(mark.node.getBoundingClientRect().top - mark.top);
    this.#look();
  }

  /** What was laid out late, above or around: the end, or what the reader looks at, is where it was. */
  #resized() {
    if (this.on.following()) this.pin();
    else this.#restore();
  }

  #restore() {
    const { mark } = this;
    if (mark && mark.node.isConnected) this.#shift(mark.node.getBoundingClientRect().top - mark.top);
    else this.#look();
  }

  #look() {
    this.mark = this.on.following() ? null : this.#marks(1)[0];
  }

  /** Blocks from the first visible one on, with their places; the first as deep inside as it can be told. */
  #marks(most = 60) {
    const edge = this.box.getBoundingClientRect().top;
    const marks = [];
    for (const node of this.content.querySelectorAll('[data-key]')) {
      const { top, bottom } = node.getBoundingClientRect();
      if (bottom <= edge) continue;
      if (top < edge && !marks.length) {
        const inner = [...node.children].find((one) => one.getBoundingClientRect().bottom > edge);
        if (inner) marks.push({ node: inner, top: inner.getBoundingClientRect().top });
      }
      marks.push({ node, top });
      if (marks.length >= most) break;
    }
    return marks;
  }

  #shift(by) {
    if (Math.abs(by) < 0.5) return;
    this.box.scrollTop += by;
    this.own = this.last = this.box.scrollTop;
  }

  /**
   * Runs a change that the reader asked for at `node`, such as opening it; the node stays under the
   * pointer, unless what opens would be out of sight below. One that is out of sight above moves nothing.
   */
  hold(node, change) {
    const box = this.box.getBoundingClientRect();
    const { top, bottom, height } = node.getBoundingClientRect();
    if (bottom <= box.top) return this.keep(change);
    const followed = this.on.following();
    change();
    this.#shift(node.getBoundingClientRect().top - top);
    const now = node.getBoundingClientRect();
    const below = now.bottom + ROOM_PX - box.bottom;
    // Its own line stays in view.
    if (now.height > height && below > 0)
      this.#shift(Math.max(0, Math.min(followed ? this.#toEnd : below, now.top - box.top - ROOM_PX)));
    this.#look();
    if (followed && this.#toEnd > SLACK_PX) this.on.follow(false);
  }
  /** Brings a node into view, for one who reads. */
  show(node) {
    this.#shift(node.getBoundingClientRect().top - this.box.getBoundingClientRect().top - 48);
    this.#look();
  }

  /** The key of the item that the reader looks at. */
  get key() {
    const node = this.mark && this.mark.node.closest('[data-key]');
    return node ? node.dataset.key : '';
  }
}
