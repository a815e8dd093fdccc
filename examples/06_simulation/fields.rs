use std::hash::{DefaultHasher, Hasher};

use ringmem::manager::{AnyBufferId, BufferConfig, BufferId, LeaseMut, MemoryManager};
use ringmem::memory::{Buffer, Device, Logged, Pinned};
use ringmem::mirror::MirroredBuffer;
use ringmem::pool::Pool;
use ringmem::stream::Stream;
use ringmem::{DeviceBytes, Result};

use super::step::{BUFFERS, Cell, Edge, Nodes, Vec3};

pub type DevicePool = Logged<Pool<Device>>;
pub type StagingPool = Pool<Pinned>;
pub type Manager = MemoryManager<DevicePool>;
type Mirror<T> = MirroredBuffer<T, StagingPool, DevicePool>;

pub struct Pools {
    pub device: DevicePool,
    pub staging: StagingPool,
}

pub struct Field<T> {
    id: BufferId<T>,
    plain: Vec<T>,
    element: fn(u32) -> T,
}

impl<T: DeviceBytes> Field<T> {
    #[track_caller] // the snapshot has the line of each field
    fn new(manager: &Manager, name: &str, config: BufferConfig, element: fn(u32) -> T) -> Result<Self> {
        Ok(Self { id: manager.create(name, 0, config)?, plain: Vec::new(), element })
    }

    /// An exclusive lease for a kernel, also for one that only reads: it may be dropped at once, as later kernels come after this one. A shared lease lasts
    /// until its kernel has ended.
    pub fn lease(&self, manager: &Manager) -> Result<LeaseMut<'static, T, DevicePool>> {
        Ok(manager.lease_mut(self.id)?.into_owned())
    }

    pub fn snapshot(&self, manager: &Manager, pools: &Pools, taken_on: &Stream) -> Result<Buffer<T, DevicePool>> {
        let mut lease = manager.lease_mut(self.id)?;
        let copy = Buffer::new(pools.device.named("frame"), lease.len())?;
        Ok(lease.download(taken_on, .., copy)?.detach())
    }

    pub fn plain(&self) -> &[T] {
        &self.plain
    }
}

pub trait AnyField {
    fn id(&self) -> AnyBufferId;
    fn begin(&mut self, manager: &Manager, from: usize) -> Result<()>;
    fn checksums(&self, manager: &Manager, pools: &Pools) -> Result<[u64; 2]>;
}

impl<T: DeviceBytes> AnyField for Field<T> {
    fn id(&self) -> AnyBufferId {
        self.id.into()
    }

    fn begin(&mut self, manager: &Manager, from: usize) -> Result<()> {
        let mut lease = manager.lease_mut(self.id)?;
        self.plain.extend((from..lease.len()).map(|node| (self.element)(node as u32)));
        lease.slice_mut(from..)?.copy_from(&self.plain[from..])
    }

    fn checksums(&self, manager: &Manager, pools: &Pools) -> Result<[u64; 2]> {
        let lease = manager.lease(self.id)?;
        let mut mirror = Mirror::new(pools.staging.clone(), pools.device.named("check"), lease.len())?;
        mirror.device_write_only()?.copy_from_view(lease.view())?;
        Ok([checksum(mirror.host()?), checksum(&self.plain)])
    }
}

fn checksum<T: DeviceBytes>(elements: &[T]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(T::slice_as_bytes(elements));
    hasher.finish()
}

pub struct Fields {
    pub positions: Field<Vec3>,
    pub velocities: Field<Vec3>,
    pub forces: Field<Vec3>,
    pub edges: Field<Edge>,
    pub grid: Field<Cell>,
    pub masses: Field<f32>,
    pub charges: Field<f32>,
    pub radii: Field<f32>,
    pub energies: Field<f32>,
    pub cells: Field<u32>,
    pub nexts: Field<u32>,
    pub ages: Field<u32>,
    pub kinds: Field<u8>,
}

impl Fields {
    pub fn new(manager: &Manager) -> Result<Self> {
        let plain = BufferConfig::new();
        Ok(Self {
            positions: Field::new(manager, "positions", BufferConfig::positions(), |node| [0, 1, 2].map(|axis| noise(node, axis)))?,
            velocities: Field::new(manager, "velocities", BufferConfig::velocities(), |_| [0.0; 3])?,
            forces: Field::new(manager, "forces", BufferConfig::forces(), |_| [0.0; 3])?,
            edges: Field::new(manager, "edges", BufferConfig::edges(), edge)?,
            grid: Field::new(manager, "grid", BufferConfig::grid(), |_| Cell { least: 0.0, most: 0.0 })?,
            masses: Field::new(manager, "masses", plain, |node| 2.0 + noise(node, 3))?,
            charges: Field::new(manager, "charges", plain, |node| noise(node, 4))?,
            radii: Field::new(manager, "radii", plain, |node| 0.02 + 0.01 * noise(node, 5))?,
            energies: Field::new(manager, "energies", plain, |_| 0.0)?,
            cells: Field::new(manager, "cells", plain, |_| 0)?,
            nexts: Field::new(manager, "nexts", plain, |_| 0)?,
            ages: Field::new(manager, "ages", plain, |_| 0)?,
            kinds: Field::new(manager, "kinds", plain, |node| node as u8)?,
        })
    }

    pub fn each(&mut self) -> [&mut dyn AnyField; BUFFERS] {
        let Self { positions, velocities, forces, edges, grid, masses, charges, radii, energies, cells, nexts, ages, kinds } = self;
        [positions, velocities, forces, edges, grid, masses, charges, radii, energies, cells, nexts, ages, kinds]
    }

    pub fn plain(&mut self) -> Nodes<'_> {
        Nodes {
            positions: &mut self.positions.plain,
            velocities: &mut self.velocities.plain,
            forces: &mut self.forces.plain,
            edges: &mut self.edges.plain,
            grid: &mut self.grid.plain,
            masses: &mut self.masses.plain,
            charges: &mut self.charges.plain,
            radii: &mut self.radii.plain,
            energies: &mut self.energies.plain,
            cells: &mut self.cells.plain,
            nexts: &mut self.nexts.plain,
            ages: &mut self.ages.plain,
            kinds: &mut self.kinds.plain,
        }
    }
}

fn edge(node: u32) -> Edge {
    Edge { nodes: [node, node / 2], length: 0.5, stiffness: 4.0, tension: 0.0, strain: 0.0, strength: 8.0, is_torn: 0 }
}

fn noise(node: u32, salt: u32) -> f32 {
    let mixed = (node ^ salt.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0xc2b2_ae35);
    (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
}
