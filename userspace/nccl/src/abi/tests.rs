//! Sizes and offsets of the structures: `tests/nccl_abi.h` asserts the same sizes.

use std::mem::offset_of;

use super::{Sge, v8, v10, v12};

/// Asserts that the members of a structure of pointers follow each other, and that there are no others.
macro_rules! assert_pointers {
    ($type:ty: $($member:ident),* $(,)?) => {
        let offsets = [$(offset_of!($type, $member)),*];
        let expected: Vec<usize> = (0..offsets.len()).map(|at| at * 8).collect();
        assert_eq!(offsets.as_slice(), expected);
        assert_eq!(size_of::<$type>(), offsets.len() * 8);
    };
}

#[test]
fn the_point_to_point_networks_have_their_members_in_order() {
    assert_pointers!(v8::Net:
        name, init, devices, get_properties, listen, connect, accept, reg_mr, reg_mr_dma_buf,
        dereg_mr, isend, irecv, iflush, test, close_send, close_recv, close_listen, get_device_mr,
        irecv_consumed);
    assert_pointers!(v10::Net:
        name, init, devices, get_properties, listen, connect, accept, reg_mr, reg_mr_dma_buf,
        dereg_mr, isend, irecv, iflush, test, close_send, close_recv, close_listen, get_device_mr,
        irecv_consumed, make_v_device);
    assert_pointers!(v12::Net:
        name, init, devices, get_properties, listen, connect, accept, reg_mr, reg_mr_dma_buf,
        dereg_mr, isend, irecv, iflush, test, close_send, close_recv, close_listen, get_device_mr,
        irecv_consumed, make_v_device, finalize, set_net_attr);
}

#[test]
fn the_collective_networks_have_their_members_in_order() {
    assert_pointers!(v8::CollNet:
        name, init, devices, get_properties, listen, connect, reduce_support, reg_mr,
        reg_mr_dma_buf, dereg_mr, iallreduce, iallgather, ireducescatter, iflush, test, close_coll,
        close_listen);
    assert_pointers!(v10::CollNet:
        name, init, devices, get_properties, listen, connect, reduce_support, reg_mr,
        reg_mr_dma_buf, dereg_mr, iallreduce, iallgather, ireducescatter, iflush, test, close_coll,
        close_listen, make_v_device);
    assert_pointers!(v12::CollNet:
        name, init, devices, get_properties, listen, connect, reduce_support, reg_mr,
        reg_mr_dma_buf, dereg_mr, iallreduce, iallgather, ireducescatter, iflush, test, close_coll,
        close_listen, make_v_device, finalize);
}

#[test]
fn the_properties_have_their_sizes_and_offsets() {
    assert_eq!([size_of::<v8::Properties>(), offset_of!(v8::Properties, net_device_version)], [64, 56]);
    assert_eq!([size_of::<v10::Properties>(), offset_of!(v10::Properties, max_coll_bytes)], [104, 96]);
    assert_eq!(offset_of!(v10::Properties, v_props), 64);
    assert_eq!([size_of::<v12::Properties>(), offset_of!(v12::Properties, plane_id)], [128, 126]);
    assert_eq!(offset_of!(v12::Properties, v_props), 64);
    assert_eq!(offset_of!(v12::Properties, max_p2p_bytes), 104);
    assert_eq!([size_of::<v8::Sge>(), size_of::<Sge>(), offset_of!(v8::Sge, size)], [24, 24, 16]);
}
