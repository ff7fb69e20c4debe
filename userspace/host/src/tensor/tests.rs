use super::*;
use sumac_api::DType;

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
    let check = |kind, offset, out_offset| {
        tensor(kind, &request(offset, out_offset)).check(4096, 4096).map_err(|failure| failure.code)
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
