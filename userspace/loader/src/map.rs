//! Typed access to array maps.
//!
//! aya takes plain bytes without `unsafe`; zerocopy converts them from and to structs.

use std::{marker::PhantomData, path::Path};

use aya::{
    Ebpf,
    maps::{Array, Map, MapData, MapError, PerCpuArray, PerCpuValues},
};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{chain::chain, pins::permission};

#[derive(Debug, Error)]
#[error("could not {operation} map {map}: {}{}", chain(.source), permission(.source))]
pub struct TableError {
    pub operation: &'static str,
    pub map: &'static str,
    pub source: MapError,
}

impl TableError {
    /// Returns a function that names the operation and the map of an error.
    pub fn of(operation: &'static str, map: &'static str) -> impl FnOnce(MapError) -> Self {
        move |source| Self { operation, map, source }
    }
}

pub fn open_pinned(pin: &Path) -> Result<Map, MapError> {
    Map::from_map_data(MapData::from_pin(pin)?)
}

/// Writes an entry of an array map of a loaded object, whose values have `N` bytes.
pub fn write<T: IntoBytes + Immutable, const N: usize>(
    ebpf: &mut Ebpf,
    name: &'static str,
    index: u32,
    value: &T,
) -> Result<(), TableError> {
    let () = const { assert!(size_of::<T>() == N) };
    let mut bytes = [0; N];
    bytes.copy_from_slice(value.as_bytes());
    let map = ebpf.map_mut(name).ok_or(MapError::ElementNotFound);
    let array = map.and_then(Array::<_, [u8; N]>::try_from);
    array.and_then(|mut array| array.set(index, bytes, 0)).map_err(TableError::of("write", name))
}

/// An array map with values of type `T`, which have `N` bytes.
pub struct Table<T, const N: usize> {
    map: Array<MapData, [u8; N]>,
    name: &'static str,
    values: PhantomData<T>,
}

impl<T: FromBytes + IntoBytes + Immutable, const N: usize> Table<T, N> {
    const IS_EXACT: () = assert!(size_of::<T>() == N);

    pub fn new(map: Map, name: &'static str) -> Result<Self, TableError> {
        let () = Self::IS_EXACT;
        let map = map.try_into().map_err(TableError::of("open", name))?;
        Ok(Self { map, name, values: PhantomData })
    }

    pub fn get(&self, index: u32) -> Result<T, TableError> {
        let bytes = self.map.get(&index, 0).map_err(TableError::of("read", self.name))?;
        Ok(value(&bytes))
    }

    pub fn set(&mut self, index: u32, value: &T) -> Result<(), TableError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(value.as_bytes());
        self.map.set(index, bytes, 0).map_err(TableError::of("write", self.name))
    }

    #[expect(clippy::len_without_is_empty, reason = "the kernel makes no array without entries")]
    pub fn len(&self) -> u32 {
        self.map.len()
    }
}

/// A per-CPU array map with values of type `T`, which have `N` bytes.
pub struct PerCpuTable<T, const N: usize> {
    map: PerCpuArray<MapData, [u8; N]>,
    name: &'static str,
    values: PhantomData<T>,
}

impl<T: FromBytes, const N: usize> PerCpuTable<T, N> {
    const IS_EXACT: () = assert!(size_of::<T>() == N);

    pub fn new(map: Map, name: &'static str) -> Result<Self, TableError> {
        let () = Self::IS_EXACT;
        let map = map.try_into().map_err(TableError::of("open", name))?;
        Ok(Self { map, name, values: PhantomData })
    }

    pub fn get(&self, index: u32) -> Result<Vec<T>, TableError> {
        let values = self.map.get(&index, 0).map_err(TableError::of("read", self.name))?;
        Ok(values.iter().map(value).collect())
    }

    /// Combines the values of all CPUs into one.
    pub fn fold<A>(&self, index: u32, initial: A, combine: impl FnMut(A, T) -> A) -> Result<A, TableError> {
        Ok(self.get(index)?.into_iter().fold(initial, combine))
    }

    /// Sets the values of all CPUs to zero.
    pub fn clear(&mut self, index: u32) -> Result<(), TableError> {
        let cpus = self.map.get(&index, 0).map_err(TableError::of("read", self.name))?.len();
        let zeros = PerCpuValues::try_from(vec![[0; N]; cpus]).map_err(MapError::from);
        zeros.and_then(|zeros| self.map.set(index, zeros, 0)).map_err(TableError::of("write", self.name))
    }

    #[expect(clippy::len_without_is_empty, reason = "the kernel makes no array without entries")]
    pub fn len(&self) -> u32 {
        self.map.len()
    }
}

fn value<T: FromBytes, const N: usize>(bytes: &[u8; N]) -> T {
    // The lengths are equal by `IS_EXACT`.
    T::read_from_bytes(bytes).unwrap_or_else(|_| T::new_zeroed())
}
