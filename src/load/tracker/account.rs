//! What the running requests of one worker add up to. Pure: no time, no
//! monitor.

use super::Cost;
use std::num::NonZeroU64;

/// What one rank is reported with: the sums, or the largest number if they
/// are larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) prefill_tokens: u64,
    pub(super) decode_blocks: u64,
}

/// What one request adds. It is taken off again with the same numbers.
#[derive(Debug)]
pub(super) struct Share {
    dp_rank: u32,
    /// Which worker of the id it runs on.
    holder: u64,
    /// 0 once the prefill is over.
    prefill_tokens: u64,
    decode_blocks: u64,
    /// Tokens that the last block has room for.
    room: u64,
}

impl Share {
    /// Takes generated tokens into account. Returns the blocks that they add,
    /// for [`Account::grow`].
    pub(super) fn generated(&mut self, tokens: u64, block_size: NonZeroU64) -> u64 {
        let Some(over) = tokens.checked_sub(self.room).filter(|over| *over > 0) else {
            self.room -= tokens;
            return 0;
        };
        self.room = room_after(over, block_size);
        over.div_ceil(block_size.get())
    }

    pub(super) fn is_in_prefill(&self) -> bool {
        self.prefill_tokens > 0
    }
}

/// The room in the last block of this many tokens.
pub(super) const fn room_after(tokens: u64, block_size: NonZeroU64) -> u64 {
    match tokens % block_size.get() {
        0 => 0,
        in_last => block_size.get() - in_last,
    }
}

/// The sums of each rank that has requests, and what was last reported of it.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// By `dp_rank`, ascending.
    ranks: Vec<Rank>,
    /// How many other workers had the id before.
    holder: u64,
    /// Where to look first for what is to be reported, so that a rank which
    /// changes all the time does not keep the others from it.
    next: usize,
    /// The ranks that a request without one may go to; none is rank 0.
    choice: Box<[u32]>,
}

#[derive(Debug)]
struct Rank {
    dp_rank: u32,
    requests: u64,
    // Wide enough for any number of requests of any cost, so that what was
    // added can be taken off exactly.
    prefill_tokens: u128,
    decode_blocks: u128,
    /// `None`: it is to be reported whatever it is.
    reported: Option<Load>,
}

impl Rank {
    fn load(&self) -> Load {
        let count = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
        Load {
            prefill_tokens: count(self.prefill_tokens),
            decode_blocks: count(self.decode_blocks),
        }
    }

    fn is_over(&self) -> bool {
        self.requests == 0 && self.reported == Some(Load::default())
    }
}

impl Account {
    /// The load of all ranks together.
    pub(super) fn sum(&self) -> Load {
        let load = |sum: Load, rank: &Rank| {
            let load = rank.load();
            Load {
                prefill_tokens: sum.prefill_tokens.saturating_add(load.prefill_tokens),
                decode_blocks: sum.decode_blocks.saturating_add(load.decode_blocks),
            }
        };
        self.ranks.iter().fold(Load::default(), load)
    }

    /// Says which ranks a request that names none may go to.
    pub(super) fn choose_from(&mut self, ranks: Box<[u32]>) {
        self.choice = ranks;
    }

    /// A request begins, on the rank that it names or on the least loaded.
    pub(super) fn begin(&mut self, cost: Cost) -> Share {
        let dp_rank = cost.dp_rank.unwrap_or_else(|| self.least_loaded());
        let share = Share {
            dp_rank,
            holder: self.holder,
            prefill_tokens: cost.prefill_tokens,
            decode_blocks: cost.prompt_blocks,
            room: cost.room,
        };
        let at = self.find(dp_rank).unwrap_or_else(|at| {
            let rank = Rank {
                dp_rank,
                requests: 0,
                prefill_tokens: 0,
                decode_blocks: 0,
                reported: Some(Load::default()),
            };
            self.ranks.insert(at, rank);
            at
        });
        let rank = &mut self.ranks[at];
        rank.requests += 1;
        rank.prefill_tokens += u128::from(share.prefill_tokens);
        rank.decode_blocks += u128::from(share.decode_blocks);
        share
    }

    /// By blocks, which a request has from its beginning to its end, then by
    /// tokens; of equals the first.
    fn least_loaded(&self) -> u32 {
        let load = |dp_rank: u32| {
            let rank = self.find(dp_rank).map(|at| &self.ranks[at]);
            rank.map_or((0, 0), |rank| (rank.decode_blocks, rank.prefill_tokens))
        };
        match &*self.choice {
            [] => 0,
            [only] => *only,
            ranks => ranks
                .iter()
                .copied()
                .min_by_key(|rank| load(*rank))
                .unwrap_or(0),
        }
    }

    /// Where a rank is, or where it would be.
    fn find(&self, dp_rank: u32) -> Result<usize, usize> {
        self.ranks
            .binary_search_by_key(&dp_rank, |rank| rank.dp_rank)
    }

    /// `None` if the share is of a worker that had the id before.
    fn rank(&mut self, share: &Share) -> Option<(usize, &mut Rank)> {
        let at = self.find(share.dp_rank).ok()?;
        (share.holder == self.holder).then(|| (at, &mut self.ranks[at]))
    }

    /// The prompt of a request is no longer in prefill.
    pub(super) fn end_prefill(&mut self, share: &mut Share) {
        if let Some((_, rank)) = self.rank(share) {
            rank.prefill_tokens -= u128::from(share.prefill_tokens);
            share.prefill_tokens = 0;
        }
    }

    /// A request has got more blocks.
    pub(super) fn grow(&mut self, share: &mut Share, blocks: u64) {
        if let Some((_, rank)) = self.rank(share) {
            let blocks = blocks.min(u64::MAX - share.decode_blocks);
            rank.decode_blocks += u128::from(blocks);
            share.decode_blocks += blocks;
        }
    }

    /// A request is over.
    pub(super) fn end(&mut self, share: &Share) {
        if let Some((at, rank)) = self.rank(share) {
            rank.requests -= 1;
            rank.prefill_tokens -= u128::from(share.prefill_tokens);
            rank.decode_blocks -= u128::from(share.decode_blocks);
            if rank.is_over() {
                self.ranks.remove(at);
            }
        }
    }

    /// Another worker has the id: nothing runs on it yet, and what runs on
    /// the one before counts no more.
    pub(super) fn hand_over(&mut self) {
        self.holder += 1;
        for rank in &mut self.ranks {
            (rank.requests, rank.prefill_tokens, rank.decode_blocks) = (0, 0, 0);
        }
        self.ranks.retain(|rank| !rank.is_over());
    }

    /// Every rank that has requests is to be reported again.
    pub(super) fn refresh(&mut self) {
        for rank in &mut self.ranks {
            rank.reported = None;
        }
    }

    /// A rank whose load is not what was last reported of it. It counts as
    /// reported from now on.
    pub(super) fn next_report(&mut self) -> Option<(u32, Load)> {
        let ranks = self.ranks.len();
        let at = (0..ranks)
            .map(|n| (self.next + n) % ranks)
            .find(|at| self.ranks[*at].reported != Some(self.ranks[*at].load()))?;
        let rank = &mut self.ranks[at];
        let due = (rank.dp_rank, rank.load());
        rank.reported = Some(due.1);
        self.next = at + 1;
        if rank.is_over() {
            self.ranks.remove(at);
            self.next = at;
        }
        Some(due)
    }

    /// Whether there is nothing to count and nothing to report.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }
}

#[cfg(all(test, not(tower_overload_loom)))]
mod tests {
    use super::*;

    const SIXTEEN: NonZeroU64 = NonZeroU64::new(16).unwrap();

    fn load(prefill_tokens: u64, decode_blocks: u64) -> Load {
        Load {
            prefill_tokens,
            decode_blocks,
        }
    }

    /// What is to be reported, as (rank, tokens, blocks).
    fn reports(account: &mut Account) -> Vec<(u32, u64, u64)> {
        std::iter::from_fn(|| account.next_report())
            .map(|(rank, load)| (rank, load.prefill_tokens, load.decode_blocks))
            .collect()
    }

    #[test]
    fn tokens_count_until_the_prefill_ends_and_blocks_until_the_end() {
        let mut account = Account::default();
        let mut first = account.begin(Cost::new(100, 7));
        assert_eq!(reports(&mut account), [(0, 100, 7)]);
        let second = account.begin(Cost::new(10, 1));
        assert_eq!(reports(&mut account), [(0, 110, 8)]);
        account.end_prefill(&mut first);
        assert_eq!(reports(&mut account), [(0, 10, 8)]);
        account.end(&second);
        assert_eq!(reports(&mut account), [(0, 0, 7)]);
        account.end(&first);
        assert_eq!(reports(&mut account), [(0, 0, 0)]);
        assert!(account.is_empty());
    }

    #[test]
    fn what_did_not_change_is_not_reported() {
        let mut account = Account::default();
        assert_eq!(reports(&mut account), []);
        let first = account.begin(Cost::new(5, 1));
        account.end(&first);
        assert_eq!(reports(&mut account), []);
        let mut free = account.begin(Cost::default());
        account.end_prefill(&mut free);
        account.end(&free);
        assert_eq!(reports(&mut account), []);
        assert!(account.is_empty());
    }

    #[test]
    fn a_refresh_reports_what_runs_and_nothing_else() {
        let mut account = Account::default();
        account.refresh();
        assert_eq!(reports(&mut account), []);
        let share = account.begin(Cost::new(5, 1));
        assert_eq!(reports(&mut account), [(0, 5, 1)]);
        account.refresh();
        assert_eq!(reports(&mut account), [(0, 5, 1)]);
        account.refresh();
        account.end(&share);
        assert_eq!(reports(&mut account), [(0, 0, 0)]);
        account.refresh();
        assert_eq!(reports(&mut account), []);
        assert!(account.is_empty());
    }

    #[test]
    fn a_request_goes_to_the_rank_that_it_names_or_to_the_least_loaded() {
        let mut account = Account::default();
        let on = |account: &mut Account, cost| account.begin(cost).dp_rank;
        assert_eq!(on(&mut account, Cost::new(1, 1)), 0, "none is declared");
        account.choose_from([2, 5].into());
        assert_eq!(on(&mut account, Cost::new(9, 3)), 2, "of equals the first");
        assert_eq!(on(&mut account, Cost::new(1, 1)), 5);
        assert_eq!(on(&mut account, Cost::new(1, 2)), 5);
        assert_eq!(
            on(&mut account, Cost::new(0, 0)),
            5,
            "as many blocks, fewer tokens"
        );
        assert_eq!(on(&mut account, Cost::new(1, 9).on_rank(7)), 7);
        let mut all = reports(&mut account);
        all.sort_unstable();
        assert_eq!(all, [(0, 1, 1), (2, 9, 3), (5, 2, 3), (7, 1, 9)]);
    }

    #[test]
    fn what_runs_on_the_worker_that_had_the_id_before_does_not_count() {
        let mut account = Account::default();
        let mut before = account.begin(Cost::new(5, 1));
        let unreported = account.begin(Cost::new(5, 1).on_rank(1));
        assert_eq!(account.next_report(), Some((0, load(5, 1))));
        account.hand_over();
        assert_eq!(reports(&mut account), [(0, 0, 0)]);
        assert!(account.is_empty());

        let after = account.begin(Cost::new(7, 2));
        account.end_prefill(&mut before);
        account.grow(&mut before, 9);
        account.end(&before);
        account.end(&unreported);
        assert_eq!(reports(&mut account), [(0, 7, 2)]);
        account.end(&after);
        assert_eq!(reports(&mut account), [(0, 0, 0)]);
        assert!(account.is_empty());
    }

    #[test]
    fn a_rank_that_always_changes_does_not_hold_up_the_others() {
        let mut account = Account::default();
        let _busy = account.begin(Cost::new(1, 1).on_rank(0));
        let _other = account.begin(Cost::new(1, 1).on_rank(1));
        assert_eq!(account.next_report().unwrap().0, 0);
        let _more = account.begin(Cost::new(1, 1).on_rank(0));
        assert_eq!(account.next_report().unwrap().0, 1);
        assert_eq!(account.next_report().unwrap().0, 0);
        assert_eq!(account.next_report(), None);
    }

    #[test]
    fn the_largest_costs_neither_overflow_nor_stick() {
        let mut account = Account::default();
        let huge = Cost::new(u64::MAX, u64::MAX);
        let mut shares: Vec<Share> = (0..3).map(|_| account.begin(huge)).collect();
        let small = account.begin(Cost::new(5, 1));
        assert_eq!(reports(&mut account), [(0, u64::MAX, u64::MAX)]);
        for share in &mut shares {
            account.end_prefill(share);
            account.grow(share, u64::MAX);
            let blocks = share.generated(u64::MAX, NonZeroU64::MIN);
            account.grow(share, blocks);
        }
        assert_eq!(reports(&mut account), [(0, 5, u64::MAX)]);
        shares.iter().for_each(|share| account.end(share));
        assert_eq!(reports(&mut account), [(0, 5, 1)]);
        account.end(&small);
        assert_eq!(reports(&mut account), [(0, 0, 0)]);
        assert!(account.is_empty());
    }

    #[test]
    fn output_fills_the_last_block_of_the_prompt_before_it_takes_another() {
        let mut account = Account::default();
        let mut share = account.begin(Cost::of_prompt(33, SIXTEEN));
        assert_eq!(share.decode_blocks, 3);
        assert_eq!(share.generated(15, SIXTEEN), 0, "48 tokens fill three");
        assert_eq!(share.generated(0, SIXTEEN), 0);
        assert_eq!(share.generated(1, SIXTEEN), 1);
        assert_eq!(share.generated(16 + 15, SIXTEEN), 1, "80 tokens fill five");
        assert_eq!(share.generated(33, SIXTEEN), 3);
        // Whatever the steps, it is what all tokens together need.
        let mut share = account.begin(Cost::of_prompt(5, SIXTEEN));
        let (mut tokens, mut blocks) = (5_u64, 1);
        for step in [1, 10, 1, 0, 47, 16, 3, 200] {
            tokens += step;
            blocks += share.generated(step, SIXTEEN);
            assert_eq!(blocks, tokens.div_ceil(16));
        }
        assert_eq!(Cost::of_prompt(0, SIXTEEN), Cost::new(0, 0));
    }
}
