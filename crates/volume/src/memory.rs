//! A device in memory, for tests of the layers above.

use std::sync::RwLock;

use crate::block::{Block, BlockError, Durability, Extent, check_range};

pub(crate) struct Memory {
    data: RwLock<Vec<u8>>,
    block_size: u32,
}

impl Memory {
    pub(crate) fn new(size: usize, block_size: u32) -> Self {
        Self { data: RwLock::new(vec![0; size]), block_size }
    }
}

impl Block for Memory {
    fn size(&self) -> u64 {
        self.data.read().unwrap().len() as u64
    }

    fn block_size(&self) -> u32 {
        self.block_size
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), BlockError> {
        check_range(self, offset, data.len() as u64);
        let at = offset as usize;
        data.copy_from_slice(&self.data.read().unwrap()[at..at + data.len()]);
        Ok(())
    }

    fn write(
        &self,
        offset: u64,
        data: &mut [u8],
        _durability: Durability,
    ) -> Result<(), BlockError> {
        check_range(self, offset, data.len() as u64);
        let at = offset as usize;
        self.data.write().unwrap()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durability: Durability,
    ) -> Result<(), BlockError> {
        self.write(offset, &mut vec![0; length as usize], durability)
    }

    fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        self.write_zeroes(offset, length, Durability::Written)
    }

    fn extents(
        &self,
        offset: u64,
        length: u64,
        _count_max: usize,
    ) -> Result<Vec<Extent>, BlockError> {
        check_range(self, offset, length);
        Ok(vec![Extent { length, allocated: true }])
    }

    fn cost_ns(&self, length: u64) -> u64 {
        length
    }
}
