//! The contiguous run of rows that one client holds of one tab, and the rule by which rows leave it.
//!
//! Numbers only, never chunks: a limit in rows and one in bytes, the newest seq, and the size of each row.
//! Guarantees: the run is contiguous, and neither limit is ever passed, whatever is asked for. Every change
//! says which rows have to leave first; the caller sends that before the rows that need the room. Cost: four
//! bytes a row.
//!
//! Rows leave by the quarter: at a limit, rows go until three quarters are left, so that a client rearranges
//! its page once per quarter window and not once per row.

use crate::chunk::Seq;
use std::collections::VecDeque;

/// What a window may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// rows
    pub rows: usize,
    /// sum of the rows' `bytes`
    pub bytes: usize,
}

/// What the client has to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evict {
    /// rows with a lower seq
    Before(Seq),
    /// rows with a higher seq, and the open chunk
    After(Seq),
}

/// One end of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// where reading back goes on
    Older,
    /// where the log grows
    Newer,
}

/// One client's window; see the module's text.
#[derive(Clone, Debug)]
pub struct Window {
    limits: Limits,
    newest: Seq,
    sizes: VecDeque<u32>,
    bytes: usize,
    following: bool,
    detached: bool,
}

impl Window {
    /// An empty window whose next newer row is `newest + 1`.
    pub fn new(limits: Limits, newest: Seq, following: bool) -> Window {
        Window { limits, newest, sizes: VecDeque::new(), bytes: 0, following, detached: false }
    }

    /// What it may hold.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The seq of its oldest row; above [`Window::newest`] while it is empty.
    pub fn oldest(&self) -> Seq {
        self.newest + 1 - self.sizes.len() as Seq
    }

    /// The seq of its newest row.
    pub fn newest(&self) -> Seq {
        self.newest
    }

    /// How many rows it holds.
    pub fn rows(&self) -> usize {
        self.sizes.len()
    }

    /// The sum of its rows' bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the client is at the bottom.
    pub fn following(&self) -> bool {
        self.following
    }

    /// Whether its newest end was given up: new rows are told of (`tail`), not sent.
    pub fn detached(&self) -> bool {
        self.detached
    }

    /// Marks that the newest end is not, or again, where the log grows.
    pub fn set_detached(&mut self, detached: bool) {
        debug_assert!(!(detached && self.following), "who follows is at the tail");
        self.detached = detached && !self.following;
    }

    /// At the bottom, or reading.
    pub fn set_following(&mut self, following: bool) {
        self.following = following;
        if following {
            self.detached = false;
        }
    }

    /// Whether a reader's window has no room for one more row of at most `row_max` bytes.
    pub fn full(&self, row_max: usize) -> bool {
        self.rows() >= self.limits.rows || self.bytes + row_max > self.limits.bytes
    }

    /// Rows and bytes that may still come until three quarters are reached.
    pub fn room_to_fill(&self) -> Limits {
        let goal = three_quarters(self.limits);
        Limits { rows: goal.rows.saturating_sub(self.rows()), bytes: goal.bytes.saturating_sub(self.bytes) }
    }

    /// Makes room for `rows` of `bytes` at one end by dropping at the other; what leaves, if anything does.
    ///
    /// Dropping at the newer end detaches the window from the tail.
    pub fn make_room(&mut self, at: End, rows: usize, bytes: usize) -> Option<Evict> {
        assert!(
            rows <= self.limits.rows && bytes <= self.limits.bytes,
            "a page is smaller than a window: {rows} rows of {bytes} bytes do not fit {:?}",
            self.limits
        );
        if self.fits(rows, bytes, self.limits) {
            return None;
        }
        let goal = three_quarters(self.limits);
        let goal = Limits {
            rows: goal.rows.min(self.limits.rows - rows),
            bytes: goal.bytes.min(self.limits.bytes - bytes),
        };
        Some(match at {
            End::Newer => self.drop_older(goal),
            End::Older => {
                let evict = self.drop_newer(goal);
                self.following = false;
                self.detached = true;
                evict
            }
        })
    }

    /// Takes the row after the newest; there must be room.
    pub fn push_newer(&mut self, seq: Seq, bytes: u32) {
        assert_eq!(seq, self.newest + 1, "a window is contiguous");
        assert!(self.fits(1, bytes as usize, self.limits), "room is made before a row is sent");
        self.newest = seq;
        self.sizes.push_back(bytes);
        self.bytes += bytes as usize;
    }

    /// Takes the row before the oldest; there must be room.
    pub fn push_older(&mut self, seq: Seq, bytes: u32) {
        assert_eq!(seq + 1, self.oldest(), "a window is contiguous");
        assert!(self.fits(1, bytes as usize, self.limits), "room is made before a row is sent");
        self.sizes.push_front(bytes);
        self.bytes += bytes as usize;
    }

    /// New limits; what has to leave, if anything: the oldest rows when following, else the newest.
    pub fn set_limits(&mut self, limits: Limits) -> Option<Evict> {
        self.limits = limits;
        if self.fits(0, 0, limits) {
            return None;
        }
        let goal = three_quarters(limits);
        if self.following {
            return Some(self.drop_older(goal));
        }
        self.detached = true;
        Some(self.drop_newer(goal))
    }

    fn fits(&self, rows: usize, bytes: usize, limits: Limits) -> bool {
        self.rows() + rows <= limits.rows && self.bytes + bytes <= limits.bytes
    }

    fn drop_older(&mut self, goal: Limits) -> Evict {
        while !self.fits(0, 0, goal) {
            let bytes = self.sizes.pop_front().expect("an empty window fits every goal");
            self.bytes -= bytes as usize;
        }
        Evict::Before(self.oldest())
    }

    fn drop_newer(&mut self, goal: Limits) -> Evict {
        while !self.fits(0, 0, goal) {
            let bytes = self.sizes.pop_back().expect("an empty window fits every goal");
            self.bytes -= bytes as usize;
            self.newest -= 1;
        }
        Evict::After(self.newest)
    }
}

fn three_quarters(limits: Limits) -> Limits {
    Limits { rows: limits.rows / 4 * 3, bytes: limits.bytes / 4 * 3 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROW_MAX: usize = 16 * 1024;

    fn limits(rows: usize) -> Limits {
        Limits { rows, bytes: 256 * 1024 }
    }

    fn filled(rows: usize, newest: Seq, following: bool) -> Window {
        let mut window = Window::new(limits(40), newest - rows as Seq, following);
        for seq in window.newest() + 1..=newest {
            window.push_newer(seq, 100);
        }
        window
    }

    #[test]
    fn a_full_window_that_follows_loses_a_quarter_of_its_oldest_rows_at_once() {
        let mut window = filled(40, 100, true);
        assert_eq!(window.make_room(End::Newer, 1, 100), Some(Evict::Before(71)));
        window.push_newer(101, 100);
        assert_eq!((window.oldest(), window.newest(), window.rows()), (71, 101, 31));
        assert_eq!(window.make_room(End::Newer, 1, 100), None);
    }

    #[test]
    fn paging_back_drops_the_newest_end_and_detaches() {
        let mut window = filled(40, 100, true);
        assert_eq!(window.make_room(End::Older, 20, 2000), Some(Evict::After(80)));
        assert!(window.detached() && !window.following());
        for seq in (41..=60).rev() {
            window.push_older(seq, 100);
        }
        assert_eq!((window.oldest(), window.newest(), window.rows()), (41, 80, 40));
    }

    #[test]
    fn bytes_count_as_much_as_rows() {
        let mut window = Window::new(limits(40), 0, true);
        for seq in 1..=16 {
            assert_eq!(window.make_room(End::Newer, 1, ROW_MAX), None);
            window.push_newer(seq, ROW_MAX as u32);
        }
        assert!(window.full(ROW_MAX));
        assert_eq!(window.make_room(End::Newer, 1, ROW_MAX), Some(Evict::Before(5)));
    }

    #[test]
    #[should_panic(expected = "contiguous")]
    fn a_gap_is_refused() {
        filled(3, 10, true).push_newer(12, 1);
    }

    /// What a client may do, and what may happen to it.
    #[derive(Clone, Debug)]
    enum Op {
        Seal(u32),
        Older(usize),
        Newer(usize),
        Follow(bool),
        Limit(usize, usize),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            8 => (2u32..ROW_MAX as u32).prop_map(Op::Seal),
            2 => (1usize..64).prop_map(Op::Older),
            2 => (1usize..64).prop_map(Op::Newer),
            1 => any::<bool>().prop_map(Op::Follow),
            1 => (20usize..80, 256usize..600).prop_map(|(rows, kib)| Op::Limit(rows, kib * 1024)),
        ];
        proptest::collection::vec(op, 1..200)
    }

    /// A client as the protocol describes it: it holds seqs and their sizes, and does as it is told.
    #[derive(Default)]
    struct Client {
        held: VecDeque<(Seq, u32)>,
    }

    impl Client {
        fn evict(&mut self, evict: Option<Evict>) {
            match evict {
                Some(Evict::Before(seq)) => self.held.retain(|(held, _)| *held >= seq),
                Some(Evict::After(seq)) => self.held.retain(|(held, _)| *held <= seq),
                None => {}
            }
        }
        fn newer(&mut self, seq: Seq, bytes: u32) {
            self.held.push_back((seq, bytes));
        }
        fn older(&mut self, seq: Seq, bytes: u32) {
            self.held.push_front((seq, bytes));
        }
    }

    /// The page that the store would give: at most half a window's rows and 64 KiB.
    fn page<'a>(log: impl Iterator<Item = &'a u32>, window: &Window, limit: usize) -> Vec<u32> {
        let rows = limit.min(window.limits().rows / 2);
        let mut bytes = 0;
        let fits = |size: &&u32| {
            bytes += **size as usize;
            bytes <= 64 * 1024
        };
        log.take(rows).take_while(fits).copied().collect()
    }

    proptest! {
        #[test]
        fn whatever_happens_it_is_contiguous_within_limits_and_what_the_client_holds(ops in ops()) {
            let mut log: Vec<u32> = Vec::new();
            let mut window = Window::new(limits(40), 0, true);
            let mut client = Client::default();
            for op in ops {
                let before = (window.oldest(), window.newest(), window.following());
                match op {
                    Op::Seal(bytes) => {
                        log.push(bytes);
                        let seq = log.len() as Seq;
                        if window.following() {
                            client.evict(window.make_room(End::Newer, 1, bytes as usize));
                        } else if window.full(ROW_MAX) {
                            window.set_detached(true);
                        }
                        if !window.detached() {
                            window.push_newer(seq, bytes);
                            client.newer(seq, bytes);
                        }
                        if !before.2 {
                            prop_assert_eq!(window.oldest(), before.0, "nothing moves under a reader");
                            prop_assert!(window.newest() >= before.1);
                        }
                    }
                    Op::Older(limit) => {
                        window.set_following(false);
                        let at = window.oldest() as usize - 1;
                        let sizes = page(log.split_at(at).0.iter().rev(), &window, limit);
                        let sum = sizes.iter().map(|size| *size as usize).sum();
                        client.evict(window.make_room(End::Older, sizes.len(), sum));
                        for size in sizes {
                            client.older(window.oldest() - 1, size);
                            window.push_older(window.oldest() - 1, size);
                        }
                    }
                    Op::Newer(limit) => {
                        let sizes = page(log.iter().skip(window.newest() as usize), &window, limit);
                        let sum = sizes.iter().map(|size| *size as usize).sum();
                        client.evict(window.make_room(End::Newer, sizes.len(), sum));
                        for size in sizes {
                            client.newer(window.newest() + 1, size);
                            window.push_newer(window.newest() + 1, size);
                        }
                        if window.newest() == log.len() as Seq {
                            window.set_detached(false);
                        }
                    }
                    Op::Follow(false) => window.set_following(false),
                    Op::Follow(true) => {
                        if window.newest() != log.len() as Seq {
                            window = Window::new(window.limits(), log.len() as Seq, true);
                            client.held.clear();
                        }
                        window.set_following(true);
                    }
                    Op::Limit(rows, bytes) => client.evict(window.set_limits(Limits { rows, bytes })),
                }
                let Limits { rows, bytes } = window.limits();
                prop_assert!(window.rows() <= rows && window.bytes() <= bytes);
                prop_assert_eq!(client.held.len(), window.rows());
                let sum: usize = client.held.iter().map(|(_, size)| *size as usize).sum();
                prop_assert_eq!(sum, window.bytes());
                for ((seq, size), expected) in client.held.iter().zip(window.oldest()..) {
                    prop_assert_eq!(*seq, expected);
                    prop_assert_eq!(*size, log[expected as usize - 1]);
                }
                if window.following() {
                    prop_assert_eq!(window.newest(), log.len() as Seq, "who follows is at the tail");
                }
            }
        }
    }
}
