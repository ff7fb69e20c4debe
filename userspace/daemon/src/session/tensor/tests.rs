use super::*;
use crate::config::Config;
use crate::quotas::Quotas;
use sumac_api::DType;
use sumac_memory::{FurtherMappings, SharedRegion};

fn region() -> Arc<Region> {
    let config = Config::parse("memory_mib = 1", "test.toml".as_ref()).unwrap();
    let (_trainers, fd) = SharedRegion::create(4096).unwrap();
    Region::register(&Quotas::new(&config), 0, fd, 4096, FurtherMappings::Allowed).unwrap()
}

fn request(offset: u64, out_offset: Option<u64>) -> Collective {
    Collective {
        job: 1,
        region: 7,
        dtype: DType::Float16,
        offset,
        count: 12,
        out_region: None,
        out_offset,
        reduction: None,
        root: Some(1),
        name: None,
        priority: 0,
        importance: sumac_job::Importance::None,
        loss_bound: 0.0,
        completion_word: None,
        timing: false,
    }
}

fn tensor(kind: CollectiveKind, request: &Collective) -> Tensor {
    Tensor::new(kind, request, ElementRanges::of(kind, 12, 1, 3, request.root))
}

fn starts(kind: CollectiveKind, out_offset: Option<u64>) -> (u64, u64) {
    let tensor = tensor(kind, &request(100, out_offset));
    (tensor.input.start, tensor.output.start)
}

#[test]
fn blocks_lie_at_their_place_in_the_tensor_or_at_their_own_offsets() {
    assert_eq!(starts(CollectiveKind::Allreduce, None), (100, 100));
    assert_eq!(starts(CollectiveKind::ReduceScatter, None), (100, 108));
    assert_eq!(starts(CollectiveKind::Allgather, None), (108, 100));
    assert_eq!(starts(CollectiveKind::ReduceScatter, Some(10)), (100, 10));
    assert_eq!(starts(CollectiveKind::Allgather, Some(10)), (100, 10));
    let output = |out_offset| tensor(CollectiveKind::Broadcast, &request(100, out_offset)).output.elements;
    assert_eq!(output(None), 0..0, "the root has its output already");
    assert_eq!(output(Some(0)), 0..12);
}

#[test]
fn ranges_are_equal_or_disjoint() {
    let region = region();
    let check = |kind, offset, out_offset| {
        tensor(kind, &request(offset, out_offset)).check(&region, &region).map_err(|failure| failure.code)
    };
    assert_eq!(check(CollectiveKind::Allreduce, 100, None), Ok(()));
    assert_eq!(check(CollectiveKind::Allreduce, 100, Some(100)), Ok(()));
    assert_eq!(check(CollectiveKind::Allreduce, 100, Some(124)), Ok(()));
    assert_eq!(check(CollectiveKind::Allreduce, 100, Some(102)), Err(Code::OutOfRange));
    assert_eq!(check(CollectiveKind::ReduceScatter, 100, Some(108)), Ok(()), "its own block");
    assert_eq!(check(CollectiveKind::ReduceScatter, 100, Some(100)), Err(Code::OutOfRange), "another's");
    assert_eq!(check(CollectiveKind::Allreduce, 4096 - 24, None), Ok(()));
    assert_eq!(check(CollectiveKind::Allreduce, 4096 - 22, None), Err(Code::OutOfRange));
    assert_eq!(check(CollectiveKind::Allreduce, u64::MAX - 1, None), Err(Code::OutOfRange));
    assert_eq!(check(CollectiveKind::Allreduce, 101, None), Err(Code::Misaligned));
}

#[test]
fn fragments_lease_their_part_of_the_ranges() {
    let tensor = tensor(CollectiveKind::ReduceScatter, &request(100, None));
    let ranges = ElementRanges::of(CollectiveKind::ReduceScatter, 12, 1, 3, None);
    let slices = |fragment: Range<u64>| {
        let ranges = ranges.within(&fragment);
        let input = tensor.slice(&tensor.input, &fragment, &ranges.input);
        (input, tensor.slice(&tensor.output, &fragment, &ranges.output))
    };
    let slice = |bytes, skip| Slice { bytes, skip };
    assert_eq!(slices(0..6), (slice(100..112, 0), slice(108..112, 8)));
    assert_eq!(slices(6..12), (slice(112..124, 0), slice(112..116, 0)));
    assert_eq!(slices(9..12), (slice(118..124, 0), Slice::default()));
}

fn slice(bytes: Range<usize>) -> Slice {
    Slice { bytes, skip: 0 }
}

#[test]
fn an_output_in_place_overwrites_the_input() {
    let mut buffer = LeasedBuffer::new(&region(), slice(8..16), None, slice(8..16)).unwrap();
    buffer.output(4, 4).copy_from_slice(b"abcd");
    assert_eq!(buffer.input(4, 4), b"abcd");
    assert!(buffer.output(4, 5).is_empty());
}

#[test]
fn an_output_that_starts_later_than_its_fragment_keeps_its_offset() {
    let output = Slice { bytes: 12..16, skip: 4 };
    let mut buffer = LeasedBuffer::new(&region(), slice(8..24), None, output).unwrap();
    buffer.output(4, 4).copy_from_slice(b"abcd");
    assert_eq!(buffer.input(4, 4), b"abcd");
    assert!(buffer.output(0, 4).is_empty(), "before it");
    assert!(buffer.output(8, 4).is_empty(), "behind it");
}

#[test]
fn an_output_in_another_region_leaves_the_input() {
    let (a, b) = (region(), region());
    let mut buffer = LeasedBuffer::new(&a, slice(0..8), Some(&b), slice(16..24)).unwrap();
    buffer.output(0, 4).copy_from_slice(b"abcd");
    assert_eq!(buffer.input(0, 4), [0; 4]);
    drop(buffer);
    assert!(!b.is_leased());
    let reader = b.shared.lease(16..20, 0..0).unwrap();
    assert_eq!(reader.input(0, 4), Some(&b"abcd"[..]));
}

#[test]
fn an_output_range_is_leased_once() {
    let (a, b) = (region(), region());
    let first = LeasedBuffer::new(&a, slice(0..8), Some(&b), slice(16..24)).unwrap();
    assert!(a.is_leased() && b.is_leased());
    assert!(LeasedBuffer::new(&b, slice(20..28), None, slice(20..28)).is_err());
    assert!(LeasedBuffer::new(&a, slice(0..8), None, slice(32..40)).is_ok());
    drop(first);
    assert!(LeasedBuffer::new(&b, slice(20..28), None, slice(20..28)).is_ok());
}

#[test]
fn a_fragment_without_elements_has_no_bytes() {
    let mut none = LeasedBuffer::new(&region(), Slice::default(), None, Slice::default()).unwrap();
    assert!(none.input(0, 1).is_empty() && none.output(0, 1).is_empty());
}
