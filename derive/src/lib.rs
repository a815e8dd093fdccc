//! The procedural macros of [ringmem](https://docs.rs/ringmem). Use them through its crates, to which expansions refer.
#![deny(missing_docs, unsafe_code)]

mod kernels;
mod layout;

use proc_macro::TokenStream;
use proc_macro2::{Span, TokenTree};
use quote::quote;

macro_rules! shared_layout {
    ($($(#[$attribute:meta])* $name:ident($trait:ident): [$($path:tt)*];)+) => {$(
        $(#[$attribute])*
        #[proc_macro_derive($trait, attributes(layout))]
        pub fn $name(input: TokenStream) -> TokenStream {
            layout::derive(input.into(), quote!($($path)*)).unwrap_or_else(syn::Error::into_compile_error).into()
        }
    )+};
}

// A derive macro cannot see its import path, so each crate exports its own.
shared_layout! {
    #[doc = include_str!("shared_layout.md")]
    shared_layout(SharedLayout): [::ringmem_layouts];
    #[doc = include_str!("shared_layout.md")]
    shared_layout_of_ringmem(SharedLayoutOfRingmem): [::ringmem::__layouts];
    #[doc = include_str!("shared_layout.md")]
    shared_layout_of_kernels(SharedLayoutOfKernels): [::ringmem_kernels::__layouts];
}

/// The expansion of `ringmem_kernels::kernels!`, which gives its `$crate` before the kernels. The expansion is `unsafe`, and trusts the names below that
/// path: no user may choose it.
#[doc(hidden)]
#[proc_macro]
pub fn kernels(input: TokenStream) -> TokenStream {
    kernels::expand(input.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// In place of `defmt::Format`.
#[doc(hidden)]
#[proc_macro_derive(NoFormat)]
pub fn no_format(_: TokenStream) -> TokenStream {
    TokenStream::new()
}

/// The compiler's error points at the path's first token. The names keep their meaning: a `$crate` is that of its macro.
fn spanned(path: &proc_macro2::TokenStream, span: Span) -> proc_macro2::TokenStream {
    let spanned = |mut token: TokenTree| {
        token.set_span(token.span().located_at(span));
        token
    };
    path.clone().into_iter().map(spanned).collect()
}
