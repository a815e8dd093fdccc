use std::sync::Arc;
use std::time::Duration;

use ringmem::Result;
use ringmem::backend::host::HostBackend;
use ringmem::double_buffer::{self, Policy, Reader, Writer};
use ringmem::memory::{Device, Logged, Pinned};
use ringmem::pool::Pool;
use ringmem::snapshot::Snapshot;
use ringmem::stream::Stream;

use super::fields::{Fields, Manager, Pools, StagingPool};
use super::step::{ADVANCE, BOUND, MEET, PULL, PUSH, Vec3, step};

const LIMIT: Duration = Duration::from_secs(30);

pub struct Simulation {
    fields: Fields,
    nodes: usize,
    manager: Manager,
    pools: Pools,
    steps: Stream,
    writer: Writer<Vec3, StagingPool>,
    reader: Reader<Vec3, StagingPool>,
    memory: Snapshot,
}

#[derive(Clone, Copy)]
pub struct Memory {
    pub live: u64,
    pub kept: u64,
}

impl Simulation {
    pub fn new(backend: &Arc<HostBackend>, limit: u64) -> Result<Self> {
        let device = Logged::new(Pool::builder(Device::new(backend, 0)).limit(limit).build()?);
        let staging = Pool::builder(Pinned::new(backend, 0)).build()?;
        let (writer, reader) = double_buffer::pair(staging.clone(), 2, Policy::Every { wait: Duration::ZERO })?;
        let manager = Manager::new(device.clone());
        Ok(Self {
            fields: Fields::new(&manager)?,
            nodes: 0,
            manager,
            pools: Pools { device, staging },
            steps: Stream::new(backend, 0)?,
            writer,
            reader,
            memory: Snapshot::new(),
        })
    }

    pub fn grow(&mut self, nodes: usize) -> Result<()> {
        let group = self.fields.each().map(|field| (field.id(), nodes));
        self.manager.resize_group_on(group, &self.steps)?;
        for field in self.fields.each() {
            field.begin(&self.manager, self.nodes)?;
        }
        self.nodes = nodes;
        Ok(())
    }

    pub fn advance(&mut self) -> Result<()> {
        self.launch()?;
        let mut snapshot = self.fields.positions.snapshot(&self.manager, &self.pools, &self.steps)?;
        let started = self.writer.start(&mut snapshot, ..)?;
        drop(snapshot);
        self.launch()?;
        step(&mut self.fields.plain());
        let frame = self.reader.next(LIMIT)?.expect("in time");
        assert_eq!(frame.sequence, started);
        assert!(frame.elements == self.fields.positions.plain(), "the positions between two steps");
        self.reader.release();
        step(&mut self.fields.plain());
        self.memory.sample("device", &self.pools.device.inner().statistics());
        self.steps.synchronize()
    }

    /// Queues the kernels of a step, one after the other.
    fn launch(&self) -> Result<()> {
        let Self { fields: f, manager: m, steps, .. } = self;
        let (positions, radii) = (f.positions.lease(m)?, f.radii.lease(m)?);
        let (positions, radii, grid) = steps.submit(BOUND, (positions, radii, f.grid.lease(m)?))?.detach();
        let found = (f.cells.lease(m)?, f.nexts.lease(m)?);
        let (positions, radii, _, _, nexts) = steps.submit(MEET, (positions, radii, grid, found.0, found.1))?.detach();
        let (positions, edges) = steps.submit(PULL, (positions, f.edges.lease(m)?))?.detach();
        let (charges, forces) = (f.charges.lease(m)?, f.forces.lease(m)?);
        let (positions, .., forces) = steps.submit(PUSH, (positions, radii, edges, charges, nexts, forces))?.detach();
        let (masses, kinds, velocities) = (f.masses.lease(m)?, f.kinds.lease(m)?, f.velocities.lease(m)?);
        let counted = (f.energies.lease(m)?, f.ages.lease(m)?);
        steps.submit(ADVANCE, (forces, masses, kinds, velocities, positions, counted.0, counted.1))?.detach();
        Ok(())
    }

    pub fn check(&mut self) -> Result<()> {
        for (number, field) in self.fields.each().into_iter().enumerate() {
            let [device, plain] = field.checksums(&self.manager, &self.pools)?;
            assert_eq!(device, plain, "buffer {number} of {} nodes", self.nodes);
        }
        Ok(())
    }

    pub fn shape(&self) -> (Vec<(u64, u64, u64)>, u64) {
        let figures = self.manager.statistics();
        (figures.buffers.iter().map(|buffer| (buffer.len, buffer.capacity, buffer.resizes)).collect(), figures.used_bytes)
    }

    pub fn memory(&self) -> Memory {
        let (live, pool) = (self.manager.statistics().used_bytes, self.pools.device.inner().statistics());
        Memory { live, kept: pool.reserved_bytes - live }
    }

    /// Gives the pool's idle memory back to the device; returns its bytes.
    pub fn trim(&self) -> u64 {
        self.pools.device.inner().trim_to(0)
    }

    pub fn nodes(&self) -> usize {
        self.nodes
    }

    pub fn snapshot(&mut self) -> &Snapshot {
        let (pools, pinned) = (&self.pools, &self.pools.staging);
        self.memory
            .pool("device", pools.device.inner())
            .pool("staging", pinned)
            .manager("fields", &self.manager)
            .logged("device", &pools.device)
    }

    pub fn close(self) -> u64 {
        self.manager.clear()
    }
}
