//! Whatever way a chunk's values come, in parts of any size, twice, overlapping, in any order: each worker is
//! in the result once.

use proptest::{collection::vec, prelude::*};
use sumac_parameter::{HostJob, ParameterHost};
use sumac_wire::{Header, Reason, header::flag};

use crate::support::*;

/// A worker: rack and bit.
type Place = (usize, u32);

fn places(racks: &[u32]) -> Vec<Place> {
    (0..racks.len()).flat_map(|rack| (0..racks[rack]).map(move |bit| (rack, bit))).collect()
}

/// The contents of a packet.
#[derive(Clone, Debug)]
enum Part {
    /// Some workers of a rack: its bits, by what is drawn, and always one.
    Rack(usize, u32),
    /// Several whole racks, by bits.
    Racks(u32),
    /// A worker itself, past the aggregators.
    Direct(usize),
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = prop_oneof![
        (any::<usize>(), any::<u32>()).prop_map(|(rack, bits)| Part::Rack(rack, bits)),
        any::<u32>().prop_map(Part::Racks),
        any::<usize>().prop_map(Part::Direct),
    ];
    vec(part, 0..20)
}

struct Case {
    racks: Vec<u32>,
    job: HostJob,
    host: ParameterHost,
    /// `[rank]`: of the chunk at hand.
    values: Vec<[i32; 4]>,
}

impl Case {
    fn new(racks: Vec<u32>) -> Case {
        let job = job(&racks);
        let mut host = ParameterHost::with_memory(1 << 40);
        host.install(job.clone()).unwrap();
        Case { racks, job, host, values: Vec::new() }
    }

    fn rank(&self, place: Place) -> usize {
        places(&self.racks).iter().position(|other| *other == place).unwrap()
    }

    /// Returns an aggregator's sum, and whether it was clamped.
    fn sum(&self, members: &[Place]) -> ([i32; 4], u16) {
        let mut flags = 0;
        let sum = std::array::from_fn(|index| {
            let terms = members.iter().map(|place| self.values[self.rank(*place)][index]);
            let add = |sum: i32, value: i32| {
                flags |= if sum.checked_add(value).is_none() { flag::OVERFLOW } else { 0 };
                sum.saturating_add(value)
            };
            terms.fold(0, add)
        });
        (sum, flags)
    }

    fn send(&mut self, part: &Part, seq: u32) -> Reason {
        let racks = &self.racks;
        let (from, header, members) = match part {
            Part::Rack(rack, bits) => {
                let rack = rack % racks.len();
                let all = u32::MAX >> (32 - racks[rack]);
                let bits = if bits & all == 0 { 1 } else { bits & all };
                let members: Vec<Place> =
                    (0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| (rack, bit)).collect();
                (aggregator(), Header { bitmap_0: bits, ..passed(header(racks, rack, 0, seq)) }, members)
            }
            Part::Racks(bits) => {
                let all = u32::MAX >> (32 - racks.len());
                let bits = bits & all;
                if bits.count_ones() < 2 {
                    return self.send(&Part::Rack(0, u32::MAX), seq);
                }
                let members = places(racks).into_iter().filter(|(rack, _)| bits >> rack & 1 == 1).collect();
                let last = 31 - bits.leading_zeros();
                (
                    aggregator(),
                    Header { bitmap_1: bits, ..passed(header(racks, last as usize, 0, seq)) },
                    members,
                )
            }
            Part::Direct(worker) => {
                let all = places(racks);
                let rank = worker % all.len();
                let (rack, bit) = all[rank];
                (address(&self.job, rank), direct(header(racks, rack, bit, seq)), vec![all[rank]])
            }
        };
        let (sum, flags) = self.sum(&members);
        give(&mut self.host, from, &Header { flags: header.flags | flags, ..header }, &sum)
    }

    /// Every worker sends its own until the result is there.
    fn send_all(&mut self, seq: u32, flags: u16, values: impl Fn(usize) -> [i32; 4]) -> Vec<Reason> {
        let all = places(&self.racks);
        let send = |(rank, (rack, bit)): (usize, &Place)| {
            let header = direct(header(&self.racks, *rack, *bit, seq));
            let header = Header { flags: header.flags | flags, ..header };
            give(&mut self.host, address(&self.job, rank), &header, &values(rank))
        };
        all.iter().enumerate().map(send).collect()
    }

    /// Completes a chunk; its result.
    fn finish(&mut self, seq: u32) -> Vec<Sent> {
        let values = self.values.clone();
        self.send_all(seq, 0, |rank| values[rank]);
        sent(&mut self.host)
    }
}

fn racks() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![4 => vec(1..=5u32, 1..=4), 1 => Just(vec![32; 32]), 1 => Just(vec![32])]
}

/// Small ones, or such that sums of some overflow.
fn values(world: usize, is_large: bool) -> impl Strategy<Value = Vec<[i32; 4]>> {
    let bits = if is_large { 31 } else { 20 };
    vec(proptest::array::uniform4(-(1i64 << bits)..1i64 << bits), world)
        .prop_map(|rows| rows.into_iter().map(|row| row.map(|value| value as i32)).collect())
}

/// A job, and for each chunk its values and its parts.
type Chunks = Vec<(Vec<[i32; 4]>, Vec<Part>)>;

fn cases() -> impl Strategy<Value = (Vec<u32>, Chunks)> {
    (racks(), any::<bool>()).prop_flat_map(|(racks, is_large)| {
        let world = racks.iter().sum::<u32>() as usize;
        let chunks = if world > 100 { 1..3 } else { 1..24 };
        (Just(racks), vec((values(world, is_large), parts()), chunks))
    })
}

fn true_sum(values: &[[i32; 4]]) -> [i64; 4] {
    std::array::from_fn(|index| values.iter().map(|row| i64::from(row[index])).sum())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_worker_is_in_the_result_once((racks, chunks) in cases()) {
        let mut case = Case::new(racks);
        for (seq, (values, parts)) in (0..).zip(chunks) {
            case.values = values;
            let reasons: Vec<Reason> = parts.iter().map(|part| case.send(part, seq)).collect();
            let completed = reasons.iter().filter(|reason| **reason == Reason::Completed).count();
            prop_assert!(completed <= 1);
            let mut answers = sent(&mut case.host);
            answers.extend(case.finish(seq));
            if answers.iter().any(|sent| sent.header.has(flag::RAW_FLOAT)) {
                answers.retain(|sent| !sent.header.has(flag::RAW_FLOAT));
                prop_assert!(answers.is_empty(), "a result of what overflowed");
                let floats: Vec<[f32; 4]> = case.values.iter().map(|row| row.map(|value| value as f32)).collect();
                case.send_all(seq, flag::RAW_FLOAT, |rank| floats[rank].map(|value| value.to_bits() as i32));
                let sum: [f64; 4] =
                    std::array::from_fn(|index| floats.iter().map(|row| f64::from(row[index])).sum());
                let sum = sum.map(|sum| (sum as f32).to_bits() as i32);
                let answers = sent(&mut case.host);
                prop_assert!(answers.iter().all(|sent| sent.values == sum && sent.header.has(flag::RAW_FLOAT)));
                prop_assert_eq!(answers.len(), case.racks.iter().sum::<u32>() as usize);
            } else {
                let sum = true_sum(&case.values);
                prop_assert!(!answers.is_empty());
                for Sent { values, header, .. } in answers {
                    let values: Vec<i64> = values.into_iter().map(i64::from).collect();
                    prop_assert_eq!(&values[..], &sum[..]);
                    prop_assert_eq!(usize::from(header.contributors), case.values.len());
                }
            }
        }
        let stats = case.host.stats();
        let job = stats.job(JOB).unwrap();
        prop_assert_eq!(job.completed, u64::from(case.host.renew(JOB, 9, case.job.workers.clone()).unwrap()[1]));
    }
}
