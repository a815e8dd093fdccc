//! The kernels of a step, and the same step in plain loops.

use ringmem_kernels::{Index, SharedLayout, kernels};

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

/// The extent in x of the [`RUN`] nodes from this one on.
#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
pub struct Cell {
    pub least: f32,
    pub most: f32,
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
const REPULSION: f32 = 2.0;
const DRAG: [f32; 4] = [1.0, 0.999, 0.99, 0.9];
const RUN: usize = 4;
/// Runs in which a node searches for another one.
const RUNS: usize = 4;

fn add(a: Vec3, b: Vec3, times: f32) -> Vec3 {
    [a[0] + b[0] * times, a[1] + b[1] * times, a[2] + b[2] * times]
}

fn square(a: Vec3) -> f32 {
    a[0] * a[0] + a[1] * a[1] + a[2] * a[2]
}

kernels! {
    /// The cells, which spare most of the comparisons of nodes.
    pub grid fn bound(at: Index, positions: &[Vec3], radii: &[f32], cell: &mut Cell) {
        let run = at.get()..(at.get() + RUN).min(at.len());
        *cell = Cell { least: f32::MAX, most: f32::MIN };
        for (position, radius) in positions[run.clone()].iter().zip(&radii[run]) {
            *cell = Cell { least: cell.least.min(position[0] - radius), most: cell.most.max(position[0] + radius) };
        }
    }

    /// Writes the index of the first later node that touches this one, plus 1, and where its run begins; zeros without one.
    pub grid fn meet(at: Index, positions: &[Vec3], radii: &[f32], grid: &[Cell], cell: &mut u32, next: &mut u32) {
        let (here, radius) = (positions[at.get()], radii[at.get()]);
        (*cell, *next) = (0, 0);
        for first in (at.get() + 1..at.len()).step_by(RUN).take(RUNS) {
            if here[0] + radius < grid[first].least || here[0] - radius > grid[first].most {
                continue;
            }
            for other in first..(first + RUN).min(at.len()) {
                let reach = radius + radii[other];
                if square(add(here, positions[other], -1.0)) < reach * reach {
                    (*cell, *next) = (first as u32, other as u32 + 1);
                    return;
                }
            }
        }
    }

    /// The tension of an edge, which tears if it is too high.
    pub grid fn pull(positions: &[Vec3], edge: &mut Edge) {
        let apart = add(positions[edge.nodes[1] as usize], positions[edge.nodes[0] as usize], -1.0);
        edge.tension = (square(apart) - edge.length * edge.length) * edge.stiffness;
        edge.strain = edge.strain.max(edge.tension);
        edge.is_torn |= u32::from(edge.strain > edge.strength);
    }

    /// The force on a node: of its charge, of the node that it touches, and of its edges, which are this one and two others, as in a heap.
    pub grid fn push(at: Index, positions: &[Vec3], radii: &[f32], edges: &[Edge], charge: &f32, next: &u32, force: &mut Vec3) {
        let here = positions[at.get()];
        *force = add([0.0, 0.0, *charge], here, -1.0);
        if let Some(other) = (*next as usize).checked_sub(1) {
            *force = add(*force, add(here, positions[other], -1.0), REPULSION * (radii[at.get()] + radii[other]));
        }
        for edge in [at.get(), 2 * at.get(), 2 * at.get() + 1].into_iter().filter_map(|edge| edges.get(edge)) {
            let [from, to] = edge.nodes.map(|node| node as usize);
            let other = if from == at.get() { to } else { from };
            if edge.is_torn == 0 {
                *force = add(*force, add(positions[other], here, -1.0), edge.tension);
            }
        }
    }

    /// The node, one time step later.
    pub grid fn advance(
        force: &Vec3,
        mass: &f32,
        kind: &u8,
        velocity: &mut Vec3,
        position: &mut Vec3,
        energy: &mut f32,
        age: &mut u32,
    ) {
        let drag = DRAG[usize::from(*kind) % DRAG.len()];
        *velocity = add(velocity.map(|x| x * drag), *force, SECONDS / mass);
        *position = add(*position, *velocity, SECONDS);
        *energy = 0.5 * mass * square(*velocity);
        *age += 1;
    }
}

/// The kernels' functions, called by the host for each node.
pub fn step(nodes: &mut Nodes<'_>) {
    let Nodes { positions, velocities, forces, edges, grid, masses, charges, radii, energies, cells, nexts, ages, kinds } = nodes;
    let len = positions.len();
    let all = || (0..len).map(|at| Index::new(at, len));
    for (at, cell) in all().zip(grid.iter_mut()) {
        bound(at, positions, radii, cell);
    }
    for ((at, cell), next) in all().zip(cells.iter_mut()).zip(nexts.iter_mut()) {
        meet(at, positions, radii, grid, cell, next);
    }
    for edge in edges.iter_mut() {
        pull(positions, edge);
    }
    for (at, force) in all().zip(forces.iter_mut()) {
        push(at, positions, radii, edges, &charges[at.get()], &nexts[at.get()], force);
    }
    for at in 0..len {
        let (velocity, position) = (&mut velocities[at], &mut positions[at]);
        advance(&forces[at], &masses[at], &kinds[at], velocity, position, &mut energies[at], &mut ages[at]);
    }
}
