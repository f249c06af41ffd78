//! Every collective, between threads of one process.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use espalier_distributed::{DistributedError, Group, Operation, Reduction};
use proptest::prelude::*;
use tch::{Device, Kind, Tensor};

const KINDS: [Kind; 5] = [Kind::Float, Kind::Double, Kind::BFloat16, Kind::Half, Kind::Int64];
const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Runs `body` on every rank, each in a thread of its own, and returns what they return in the order of ranks.
fn on_ranks<T: Send>(groups: Vec<Group>, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || body(&group))).collect();
        threads.into_iter().map(|t| t.join().expect("a rank panicked")).collect()
    })
}

fn ranks<T: Send>(world: usize, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    on_ranks(Group::threads(world).expect("threads meet"), body)
}

/// Runs `body` for every kind in every world of 1 to 4 ranks.
fn everywhere(body: impl Fn(&Group, Kind) + Sync) {
    for world in 1..=4 {
        ranks(world, |group| KINDS.iter().for_each(|kind| body(group, *kind)));
    }
}

/// `first, first + 1, ...`, exact in every kind.
fn counting(first: usize, shape: &[i64], kind: Kind) -> Tensor {
    let count: i64 = shape.iter().product();
    (Tensor::arange(count, (Kind::Int64, Device::Cpu)) + first as i64).to_kind(kind).reshape(shape)
}

fn zeros(shape: &[i64], kind: Kind) -> Tensor {
    Tensor::zeros(shape, (kind, Device::Cpu))
}

#[test]
fn all_gather_concatenates_in_the_order_of_ranks() {
    everywhere(|group, kind| {
        let world = group.world_size() as i64;
        let mut output = zeros(&[world * 2, 3], kind);
        group.all_gather_into(&mut output, &counting(6 * group.rank(), &[2, 3], kind)).expect("gathered");
        assert_eq!(output, counting(0, &[world * 2, 3], kind), "{kind:?} of {world}");
    });
}

#[test]
fn reduce_scatter_adds_and_hands_out_blocks() {
    everywhere(|group, kind| {
        let (rank, world) = (group.rank(), group.world_size() as i64);
        let input = counting(0, &[world, 5], kind) * (rank as i64 + 1);
        let mut output = zeros(&[5], kind);
        group.reduce_scatter_into(&mut output, &input).expect("reduced");
        let ones_to_world = world * (world + 1) / 2;
        assert_eq!(output, counting(5 * rank, &[5], kind) * ones_to_world, "{kind:?} of {world}");
    });
}

#[test]
fn all_reduce_sums_and_finds_extremes() {
    everywhere(|group, kind| {
        let (rank, world) = (group.rank() as i64, group.world_size() as i64);
        let reduced = |reduction| {
            let mut tensor = counting(0, &[4], kind) * (rank + 1);
            group.all_reduce(&mut tensor, reduction).expect("reduced");
            tensor
        };
        assert_eq!(reduced(Reduction::Sum), counting(0, &[4], kind) * (world * (world + 1) / 2), "{kind:?} of {world}");
        assert_eq!(reduced(Reduction::Max), counting(0, &[4], kind) * world, "{kind:?} of {world}");
        assert_eq!(reduced(Reduction::Min), counting(0, &[4], kind), "{kind:?} of {world}");
    });
}

#[test]
fn broadcast_copies_from_any_root() {
    everywhere(|group, kind| {
        for root in 0..group.world_size() {
            let mut tensor = counting(10 * group.rank(), &[2, 2], kind);
            group.broadcast(&mut tensor, root).expect("sent");
            assert_eq!(tensor, counting(10 * root, &[2, 2], kind), "{kind:?} from {root}");
        }
    });
}

#[test]
fn a_group_of_one_changes_nothing() {
    let group = Group::single();
    let mut tensor = counting(1, &[3], Kind::Float);
    group.all_reduce(&mut tensor, Reduction::Sum).expect("reduced");
    group.broadcast(&mut tensor, 0).expect("sent");
    group.barrier().expect("passed");
    assert_eq!(tensor, counting(1, &[3], Kind::Float));
    let mut copy = zeros(&[3], Kind::Float);
    group.all_gather_into(&mut copy, &tensor).expect("gathered");
    assert_eq!(copy, tensor);
    let work = group.start_reduce_scatter_into(zeros(&[3], Kind::Float), &tensor).expect("started");
    assert_eq!(work.wait().expect("reduced"), tensor);
    assert_eq!(group.all_gather_bytes(b"x").expect("gathered"), [b"x"]);
    assert_eq!(group.broadcast_json(&"x".to_owned(), 0).expect("sent"), "x");
}

#[test]
fn strides_do_not_matter() {
    ranks(2, |group| {
        let rank = group.rank() as i64;
        let input = (counting(0, &[3, 2], Kind::Float) + 100 * rank).transpose(0, 1);
        let mut output = zeros(&[3, 4], Kind::Float).transpose(0, 1);
        group.all_gather_into(&mut output, &input).expect("gathered");
        let both = [0, 100].map(|more| (counting(0, &[3, 2], Kind::Float) + more).transpose(0, 1));
        assert_eq!(output, Tensor::cat(&both, 0));

        let mut blocks = zeros(&[3, 2], Kind::Float).transpose(0, 1);
        group.reduce_scatter_into(&mut blocks, &output).expect("reduced");
        assert_eq!(blocks, Tensor::cat(&both, 0).narrow(0, 2 * rank, 2) * 2);

        let whole = Tensor::full([3, 2], rank, FLOAT);
        group.all_reduce(&mut whole.select(1, 1), Reduction::Sum).expect("reduced");
        assert_eq!(whole.select(1, 0), Tensor::full([3], rank, FLOAT), "the other column stays");
        assert_eq!(whole.select(1, 1), Tensor::ones([3], FLOAT));
        group.broadcast(&mut whole.select(1, 0), 1).expect("sent");
        assert_eq!(whole, Tensor::ones([3, 2], FLOAT));
    });
}

#[test]
fn sums_of_16_bit_floats_are_rounded_once() {
    // 256 + 1 is no bf16, and 2048 + 1 no f16: added one by one in 16 bits, ones are lost.
    for (kind, large) in [(Kind::BFloat16, 256.0), (Kind::Half, 2048.0)] {
        ranks(3, |group| {
            let mine = if group.rank() == 0 { large } else { 1.0 };
            let input = Tensor::full([3], mine, (kind, Device::Cpu));
            let mut same = zeros(&[1], kind);
            group.reduce_scatter_into(&mut same, &input).expect("reduced");
            assert_eq!(same.double_value(&[0]), large + 2.0);
        });
        ranks(2, |group| {
            let mine = if group.rank() == 0 { large } else { 1.0 };
            let mut wide = zeros(&[1], Kind::Float);
            let input = Tensor::full([2], mine, (kind, Device::Cpu));
            group.reduce_scatter_into(&mut wide, &input).expect("reduced");
            assert_eq!(wide.double_value(&[0]), large + 1.0);
        });
    }
}

#[test]
fn reduce_scatter_adds_in_the_order_of_ranks() {
    const WORLD: usize = 4;
    tch::manual_seed(1);
    let inputs: Vec<Tensor> = (0..WORLD).map(|_| Tensor::randn([4 * 1000], FLOAT) * 1e3).collect();
    let expected = inputs[1..].iter().fold(inputs[0].copy(), |sum, next| sum + next);
    let backwards = inputs[..3].iter().rev().fold(inputs[3].copy(), |sum, next| sum + next);
    assert_ne!(expected, backwards, "the order must matter for this test to mean something");
    let inputs: Vec<_> = inputs.into_iter().map(std::sync::Mutex::new).collect();
    let parts = ranks(WORLD, |group| {
        let input = inputs[group.rank()].lock().expect("not poisoned").shallow_clone();
        let mut output = zeros(&[1000], Kind::Float);
        group.reduce_scatter_into(&mut output, &input).expect("reduced");
        output
    });
    assert_eq!(Tensor::cat(&parts, 0), expected);
}

#[test]
fn large_and_odd_sizes_arrive_whole() {
    ranks(3, |group| {
        let n = 1_000_003;
        let mut output = zeros(&[3 * n], Kind::Int64);
        group.all_gather_into(&mut output, &counting(group.rank() * n as usize, &[n], Kind::Int64)).expect("gathered");
        assert_eq!(output, counting(0, &[3 * n], Kind::Int64));
        let mut part = zeros(&[n], Kind::Int64);
        group.reduce_scatter_into(&mut part, &output).expect("reduced");
        assert_eq!(part, counting(group.rank() * n as usize, &[n], Kind::Int64) * 3);
    });
}

#[test]
fn empty_tensors_are_no_special_case() {
    ranks(2, |group| {
        let mut empty = zeros(&[0, 3], Kind::Float);
        group.all_gather_into(&mut empty, &zeros(&[0], Kind::Float)).expect("gathered");
        group.reduce_scatter_into(&mut zeros(&[0], Kind::Float), &empty).expect("reduced");
        group.all_reduce(&mut empty, Reduction::Sum).expect("reduced");
        group.broadcast(&mut empty, 1).expect("sent");
    });
}

#[test]
fn parameters_are_read_and_written_without_autograd() {
    ranks(2, |group| {
        let mut parameter = Tensor::full([2], group.rank() as i64, FLOAT).set_requires_grad(true);
        let mut full = zeros(&[4], Kind::Float);
        group.all_gather_into(&mut full, &parameter).expect("gathered");
        assert!(!full.requires_grad());
        group.broadcast(&mut parameter, 1).expect("sent");
        assert_eq!(parameter.detach(), Tensor::ones([2], FLOAT));
        (&parameter * 3).sum(Kind::Float).backward();
        assert_eq!(parameter.grad(), Tensor::full([2], 3, FLOAT));
    });
}

#[test]
fn started_collectives_end_in_any_order_of_waiting() {
    ranks(3, |group| {
        let gather = |first: usize| {
            let input = counting(first + 2 * group.rank(), &[2], Kind::Float);
            group.start_all_gather_into(zeros(&[6], Kind::Float), &input).expect("started")
        };
        let (first, second) = (gather(0), gather(100));
        let part = group.start_reduce_scatter_into(zeros(&[1], Kind::Float), &Tensor::ones([3], FLOAT));
        let mut sum = Tensor::ones([1], FLOAT);
        group.all_reduce(&mut sum, Reduction::Sum).expect("reduced");
        assert_eq!(sum.double_value(&[0]), 3.0);
        assert_eq!(second.wait().expect("gathered"), counting(100, &[6], Kind::Float));
        assert_eq!(first.wait().expect("gathered"), counting(0, &[6], Kind::Float));
        assert_eq!(part.expect("started").wait().expect("reduced").double_value(&[0]), 3.0);
    });
}

#[test]
fn dropped_work_does_not_keep_others_waiting() {
    ranks(2, |group| {
        let work = group.start_all_gather_into(zeros(&[2], Kind::Float), &Tensor::ones([1], FLOAT)).expect("started");
        if group.rank() == 0 {
            drop(work);
        } else {
            assert_eq!(work.wait().expect("gathered"), Tensor::ones([2], FLOAT));
        }
    });
}

#[test]
fn uneven_sizes_are_refused_before_anything_is_sent() {
    for world in 2..=4 {
        ranks(world, |group| {
            let n = group.world_size() as i64;
            let input = zeros(&[3], Kind::Float);
            let error = group.all_gather_into(&mut zeros(&[3 * n - 1], Kind::Float), &input).expect_err("too small");
            let text = error.to_string();
            assert!(matches!(error, DistributedError::Argument { argument: "output", .. }), "{text}");
            assert!(text.contains(&format!("rank {}: all_gather: `output`", group.rank())), "{text}");
            assert!(text.contains(&format!("expected {} elements of Float", 3 * n)), "{text}");
            assert!(text.contains(&format!("found {} elements", 3 * n - 1)), "{text}");
            let uneven = zeros(&[3 * n + 1], Kind::Float);
            let error = group.reduce_scatter_into(&mut zeros(&[3], Kind::Float), &uneven).expect_err("uneven");
            assert!(matches!(error, DistributedError::Argument { argument: "input", .. }), "{error}");
            group.barrier().expect("the group goes on");
        });
    }
}

#[test]
fn kinds_that_cannot_work_are_refused_before_anything_is_sent() {
    ranks(2, |group| {
        let float = zeros(&[2], Kind::Float);
        let refused = |result: Result<(), DistributedError>, argument: &str| match result {
            Err(DistributedError::Argument { argument: found, .. }) => assert_eq!(found, argument),
            other => panic!("expected `{argument}` to be refused, got {other:?}"),
        };
        refused(group.all_gather_into(&mut zeros(&[4], Kind::Double), &float), "output");
        refused(group.reduce_scatter_into(&mut zeros(&[1], Kind::Double), &float), "output");
        refused(group.reduce_scatter_into(&mut zeros(&[1], Kind::BFloat16), &float), "output");
        refused(group.all_reduce(&mut zeros(&[2], Kind::Bool), Reduction::Sum), "tensor");
        refused(group.broadcast(&mut zeros(&[2], Kind::Int), 0), "tensor");
        refused(group.broadcast(&mut zeros(&[2], Kind::Float), 2), "root");
        refused(group.all_reduce(&mut Tensor::new(), Reduction::Sum), "tensor");
        refused(group.broadcast_bytes(b"", 2).map(drop), "root");
        group.barrier().expect("the group goes on");
    });
}

/// One call that differs between ranks must end as a disagreement on every rank, and leave the group whole.
#[track_caller]
fn disagreement(call: impl Fn(&Group, bool) -> Result<(), DistributedError> + Sync, expected: &str, found: &str) {
    let errors = ranks(3, |group| {
        let error = call(group, group.rank() == 2).expect_err("ranks differ");
        group.barrier().expect("the group goes on");
        error
    });
    for (rank, error) in errors.iter().enumerate() {
        let text = error.to_string();
        assert!(matches!(error, DistributedError::Disagreement { peer: 2, .. }), "{text}");
        assert!(text.starts_with(&format!("rank {rank}: ")), "{text}");
        assert!(text.contains(&format!("rank 0 called {expected}, found rank 2 calling {found};")), "{text}");
    }
}

#[test]
fn ranks_that_call_differently_all_learn_of_it() {
    disagreement(
        |group, odd| group.all_reduce(&mut zeros(&[3 + i64::from(odd)], Kind::Float), Reduction::Sum),
        "`all_reduce` (Sum) of 3 elements of Float",
        "`all_reduce` (Sum) of 4 elements of Float",
    );
    disagreement(
        |group, odd| {
            let kind = if odd { Kind::Int64 } else { Kind::Double };
            group.all_gather_into(&mut zeros(&[3], kind), &zeros(&[1], kind))
        },
        "`all_gather` of 1 elements of Double",
        "`all_gather` of 1 elements of Int64",
    );
    disagreement(
        |group, odd| {
            let reduction = if odd { Reduction::Min } else { Reduction::Max };
            group.all_reduce(&mut zeros(&[1], Kind::Half), reduction)
        },
        "`all_reduce` (Max) of 1 elements of Half",
        "`all_reduce` (Min) of 1 elements of Half",
    );
    disagreement(
        |group, odd| group.broadcast(&mut zeros(&[1], Kind::Float), usize::from(odd)),
        "`broadcast` from rank 0 of 1 elements of Float",
        "`broadcast` from rank 1 of 1 elements of Float",
    );
    disagreement(
        |group, odd| if odd { group.barrier() } else { group.all_gather_bytes(b"x").map(drop) },
        "`all_gather_bytes`",
        "`barrier`",
    );
}

#[test]
fn a_rank_that_does_not_come_breaks_the_group() {
    let gave_up = Barrier::new(2);
    let results = on_ranks(Group::threads_within(2, Duration::from_secs(1)).expect("threads meet"), |group| {
        if group.rank() == 0 {
            let error = group.barrier().expect_err("nobody else came");
            gave_up.wait();
            return (error, group.all_reduce(&mut zeros(&[1], Kind::Float), Reduction::Sum));
        }
        gave_up.wait();
        // What rank 0 had sent before it gave up may still arrive.
        let error = (0..2).find_map(|_| group.barrier().err()).expect("rank 0 has left");
        (error, group.all_reduce(&mut zeros(&[1], Kind::Float), Reduction::Sum))
    });
    let expected = [
        "rank 0: barrier: not all ranks took part within the group's timeout of 1s",
        "rank 1: barrier: a connection to another rank broke before the group's timeout of 1s",
    ];
    for (rank, (error, refused)) in results.into_iter().enumerate() {
        assert!(error.to_string().starts_with(expected[rank]), "{error}");
        let refused = refused.expect_err("broken");
        assert!(matches!(refused, DistributedError::Broken { .. }), "{refused}");
        let expected = format!("rank {rank}: all_reduce: refused, because the process group broke earlier (barrier: ");
        assert!(refused.to_string().starts_with(&expected), "{refused}");
    }
}

#[test]
fn work_that_was_waiting_for_its_turn_is_refused_when_the_group_breaks() {
    let gave_up = Barrier::new(2);
    on_ranks(Group::threads_within(2, Duration::from_secs(1)).expect("threads meet"), |group| {
        if group.rank() == 0 {
            let work = [0, 1].map(|_| group.start_all_gather_into(zeros(&[2], Kind::Float), &zeros(&[1], Kind::Float)));
            let [first, second] = work.map(|w| w.expect("started").wait().expect_err("nobody else came"));
            assert!(matches!(first, DistributedError::TimedOut { .. }), "{first}");
            assert!(matches!(second, DistributedError::Broken { .. }), "{second}");
        }
        gave_up.wait();
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn bytes_of_any_lengths_arrive_whole(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..=4)) {
        let root = parts[0].len() % parts.len();
        for (gathered, sent) in ranks(parts.len(), |group| {
            let mine = &parts[group.rank()];
            (group.all_gather_bytes(mine).expect("gathered"), group.broadcast_bytes(mine, root).expect("sent"))
        }) {
            prop_assert_eq!(&gathered, &parts);
            prop_assert_eq!(&sent, &parts[root]);
        }
    }
}

#[test]
fn json_values_are_passed_on() {
    ranks(3, |group| {
        let mine = (group.rank(), vec![0.5; group.rank()]);
        let all = group.all_gather_json(&mine).expect("gathered");
        assert_eq!(all, [(0, vec![]), (1, vec![0.5]), (2, vec![0.5; 2])]);
        assert_eq!(group.broadcast_json(&mine, 2).expect("sent"), (2, vec![0.5; 2]));
    });
}

#[test]
fn json_of_another_type_names_the_rank_that_sent_it() {
    let errors = ranks(2, |group| {
        if group.rank() == 0 {
            group.broadcast_json(&"text".to_owned(), 0).map(drop)
        } else {
            group.broadcast_json(&1u32, 0).map(drop)
        }
    });
    assert!(errors[0].is_ok());
    match &errors[1] {
        Err(DistributedError::Json { rank: 1, operation: Operation::BroadcastBytes, peer: 0, .. }) => {}
        other => panic!("expected an error about rank 0's value, got {other:?}"),
    }
}
