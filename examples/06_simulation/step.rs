use core::slice;

use ringmem::image::{Entry, KernelHost};
use ringmem::{Abi, DeviceBytes, Image, LAYOUTS, SharedLayout};

pub type Vec3 = [f32; 3];

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
pub struct Edge {
    pub nodes: [u32; 2],
    pub length: f32,
    pub stiffness: f32,
    pub tension: f32,
    pub strain: f32,
    pub strength: f32,
    pub is_torn: u32,
}

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
pub struct Cell {
    pub newest: u32,
    pub count: u32,
}

pub struct Nodes<'a> {
    pub positions: &'a mut [Vec3],
    pub velocities: &'a mut [Vec3],
    pub forces: &'a mut [Vec3],
    pub edges: &'a mut [Edge],
    pub grid: &'a mut [Cell],
    pub masses: &'a mut [f32],
    pub charges: &'a mut [f32],
    pub radii: &'a mut [f32],
    pub energies: &'a mut [f32],
    pub cells: &'a mut [u32],
    pub nexts: &'a mut [u32],
    pub ages: &'a mut [u32],
    pub kinds: &'a mut [u8],
}

pub const BUFFERS: usize = 13;
pub const NODE_BYTES: u64 = 3 * 12 + 32 + 8 + 4 * 4 + 3 * 4 + 1;

const SECONDS: f32 = 0.01;
const PUSH: f32 = 2.0;
const DRAG: [f32; 4] = [1.0, 0.999, 0.99, 0.9];

fn add(a: Vec3, b: Vec3, times: f32) -> Vec3 {
    [a[0] + b[0] * times, a[1] + b[1] * times, a[2] + b[2] * times]
}

fn square(a: Vec3) -> f32 {
    a[0] * a[0] + a[1] * a[1] + a[2] * a[2]
}

pub fn step(nodes: &mut Nodes<'_>) {
    nodes.grid.fill(Cell { newest: 0, count: 0 });
    for (node, position) in nodes.positions.iter().enumerate() {
        let [x, y, z] = position.map(|x| (x * 64.0) as i32 as u32);
        let number = (x.wrapping_mul(73_856_093) ^ y.wrapping_mul(19_349_663) ^ z.wrapping_mul(83_492_791)) % nodes.grid.len() as u32;
        let cell = &mut nodes.grid[number as usize];
        nodes.cells[node] = number;
        nodes.nexts[node] = cell.newest;
        *cell = Cell { newest: node as u32 + 1, count: cell.count + 1 };
    }
    for node in 0..nodes.positions.len() {
        let here = nodes.positions[node];
        let mut force = add([0.0, 0.0, nodes.charges[node]], here, -1.0);
        if let Some(other) = (nodes.nexts[node] as usize).checked_sub(1) {
            let (apart, reach) = (add(here, nodes.positions[other], -1.0), nodes.radii[node] + nodes.radii[other]);
            if square(apart) < reach * reach {
                force = add(force, apart, PUSH);
            }
        }
        nodes.forces[node] = force;
    }
    for edge in nodes.edges.iter_mut().filter(|edge| edge.is_torn == 0) {
        let [from, to] = edge.nodes.map(|node| node as usize);
        let apart = add(nodes.positions[to], nodes.positions[from], -1.0);
        let length = square(apart).sqrt();
        edge.tension = (length - edge.length) * edge.stiffness;
        edge.strain = edge.strain.max(edge.tension);
        edge.is_torn = u32::from(edge.strain > edge.strength);
        let pull = edge.tension / length.max(edge.length);
        nodes.forces[from] = add(nodes.forces[from], apart, pull);
        nodes.forces[to] = add(nodes.forces[to], apart, -pull);
    }
    for node in 0..nodes.positions.len() {
        let drag = DRAG[usize::from(nodes.kinds[node]) % DRAG.len()];
        let velocity = add(nodes.velocities[node].map(|x| x * drag), nodes.forces[node], SECONDS / nodes.masses[node]);
        nodes.positions[node] = add(nodes.positions[node], velocity, SECONDS);
        nodes.energies[node] = 0.5 * nodes.masses[node] * square(velocity);
        nodes.velocities[node] = velocity;
        nodes.ages[node] += 1;
    }
}

/// Arguments: the buffers' addresses in the order of [`Nodes`], then their length.
pub const IMAGE: Image = Image { ptx: b"", host: &[Entry { name: "step", arguments: BUFFERS + 1, run: kernel }], abi: Abi::of(LAYOUTS) };

/// # Safety
///
/// Each address has that many elements, otherwise unused until this returns.
unsafe fn kernel(host: &dyn KernelHost, arguments: &[u64]) {
    let len = arguments[BUFFERS];
    let mut addresses = Addresses { host, rest: arguments, len };
    // SAFETY: the caller promises that each address has `len` elements of its buffer's type, in the order of `Nodes`, and that nothing else
    // uses them.
    step(&mut unsafe {
        Nodes {
            positions: addresses.elements(),
            velocities: addresses.elements(),
            forces: addresses.elements(),
            edges: addresses.elements(),
            grid: addresses.elements(),
            masses: addresses.elements(),
            charges: addresses.elements(),
            radii: addresses.elements(),
            energies: addresses.elements(),
            cells: addresses.elements(),
            nexts: addresses.elements(),
            ages: addresses.elements(),
            kinds: addresses.elements(),
        }
    });
}

struct Addresses<'a> {
    host: &'a dyn KernelHost,
    rest: &'a [u64],
    len: u64,
}

impl<'a> Addresses<'a> {
    /// # Safety
    ///
    /// Elements of type `T`, otherwise unused during the borrow.
    unsafe fn elements<T: DeviceBytes>(&mut self) -> &'a mut [T] {
        let (&address, rest) = self.rest.split_first().expect("an address each");
        self.rest = rest;
        let place = self.host.translate(address, self.len * size_of::<T>() as u64).expect("memory of the device");
        // SAFETY: `translate` mapped that many bytes, and any bytes are valid; the caller promises elements of type `T` that nothing else
        // uses during the borrow.
        unsafe { slice::from_raw_parts_mut(place.cast().as_ptr(), self.len as usize) }
    }
}
