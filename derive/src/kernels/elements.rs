//! Kernels over buffers: `grid fn saxpy(x: &f32, y: &mut f32, a: f32) { .. }`.
//!
//! On the device, each thread calls the function for its elements. A parameter of the function is one or two of the entry:
//!
//! | function | entry | argument of a call |
//! |---|---|---|
//! | | `count: u64` | |
//! | `at: Index` | | the place and the count |
//! | `x: &T` | `x: *const T` | an element |
//! | `y: &mut T` | `y: *mut T` | an element |
//! | `all: &[T]` | `all: *const T`, `all_len: u64` | the slice |
//! | `a: T` | `a: T` | a copy |
//!
//! On the host, the words of the launch have the same order, and a group calls the function for its part of the elements.
//!
//! The expansion is `unsafe`, next to tokens of a user who may be hostile: see "Soundness" in the parent.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Token, Type};

use super::{Expanded, Kernel, Types};
use crate::layout::unraw;

pub(super) struct Parameter {
    /// `mut`, of a value.
    pub mutable: Option<Token![mut]>,
    pub name: Ident,
    pub role: Role,
    /// The type of an element, or of the value.
    pub ty: Type,
    /// The type as written: the compiler's suggestions are for its tokens.
    pub written: Type,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Role {
    /// `at: Index`
    Index,
    /// `x: &T`
    Element,
    /// `y: &mut T`
    ElementMut,
    /// `all: &[T]`
    All,
    /// `a: T`
    Scalar,
}

impl Parameter {
    /// As the function declares it.
    pub fn declared(&self) -> TokenStream {
        let Self { mutable, name, written, .. } = self;
        quote!(#mutable #name: #written)
    }
}

pub(super) fn expand(
    kernel: &Kernel,
    parameters: &[Parameter],
    elements: &Types<'_>,
    path: &TokenStream,
    called: &Ident,
    run: &TokenStream,
) -> Expanded {
    let Kernel { conditions, attributes, visibility, name, .. } = kernel;
    let text = unraw(name);
    let only_if = quote!(#(#conditions)*);
    let constant = Ident::new(&text.to_uppercase(), name.span());
    let [names, entry] = [format_ident!("__{text}_parameters"), format_ident!("__{text}_on_the_device")];
    let [at, index, begin, count, host, words, arguments, function] =
        ["at", "index", "begin", "count", "host", "words", "arguments", "function"].map(super::own);
    let [safe, safe_type] = [super::own("safe"), super::own("Safe")];
    let (grid, private) = (quote!(#path::__layouts::grid), quote!(#path::__private::elements));

    let (mut markers, mut named) = (TokenStream::new(), TokenStream::new());
    let (mut kinds, mut own_kinds, mut lengths, mut checked) = (Vec::new(), Vec::new(), vec![quote!(1)], TokenStream::new());
    let (mut taken, mut places, mut read, mut given) = (Vec::new(), TokenStream::new(), TokenStream::new(), Vec::new());
    let mut signature = Vec::new();
    // Those with an element for each call.
    let mut columns: Vec<Ident> = Vec::new();
    for Parameter { name, role, ty, .. } in parameters {
        let (place, len) = (super::own(&format!("{}_place", unraw(name))), super::own(&format!("{}_len", unraw(name))));
        // Of the macro, so that lints of names do not concern it; its edition may have other keywords than the user's.
        let marker = Ident::new_raw(&unraw(name), Span::mixed_site());
        let own = elements.alias(ty);
        signature.push(match role {
            Role::Index => quote!(#grid::Index),
            Role::Element => quote!(&#own),
            Role::ElementMut => quote!(&mut #own),
            Role::All => quote!(&[#own]),
            Role::Scalar => quote!(#own),
        });
        if *role != Role::Index {
            let what = unraw(name);
            // Without a name among the values, where the compiler would suggest it.
            markers.extend(quote!(pub enum #marker {}));
            // Outside of their module, where the path of the crate would be another.
            named.extend(quote! {
                impl #grid::Parameter for #names::#marker {
                    const NAME: &'static str = #what;
                }
            });
        }
        let mut kind = |kind: TokenStream| {
            kinds.push(quote_spanned!(ty.span()=> #grid::#kind<#ty, #names::#marker>));
            own_kinds.push(quote!(#grid::#kind<#own, #names::#marker>));
        };
        match role {
            Role::Index => given.push(quote!(#grid::Index::new(#index, #count as usize))),
            Role::Element => {
                kind(quote!(Element));
                lengths.push(quote!(1));
                taken.push(quote!(#place: *const #own));
                places.extend(quote!(let #place = #private::Column::<#own>::new(#place as *mut #own);));
                columns.push(place.clone());
                read.extend(quote!(let #place = #private::Arguments::elements::<#own>(&mut #arguments);));
                given.push(quote!(#private::Column::<#own>::get(#place, #at)));
            }
            Role::ElementMut => {
                kind(quote!(ElementMut));
                lengths.push(quote!(1));
                taken.push(quote!(#place: *mut #own));
                places.extend(quote!(let #place = #private::Column::<#own>::new(#place);));
                columns.push(place.clone());
                read.extend(quote!(let #place = #private::Arguments::elements::<#own>(&mut #arguments);));
                given.push(quote!(#private::Column::<#own>::get_mut(#place, #at)));
            }
            Role::All => {
                kind(quote!(All));
                lengths.push(quote!(2));
                taken.push(quote!(#place: *const #own));
                taken.push(quote!(#len: u64));
                places.extend(quote!(let #place = #private::slice::<#own>(#place, #len);));
                read.extend(quote!(let #place = #private::Arguments::all::<#own>(&mut #arguments);));
                given.push(quote!(#place));
            }
            Role::Scalar => {
                kind(quote!(Scalar));
                let here = crate::spanned(path, ty.span());
                let words = quote_spanned!(ty.span()=> #here::__layouts::__private::words_of::<#own>());
                // On both sides: the device's compiler has no such parameters.
                checked.extend(quote_spanned!(ty.span()=> let _ = #words;));
                lengths.push(words);
                taken.push(quote!(#place: #own));
                read.extend(quote!(let #place = #private::Arguments::value::<#own>(&mut #arguments);));
                given.push(quote!(#private::copied::<#own>(&#place)));
            }
        }
    }
    // Whatever has this name, also if an attribute removes the function: it is safe to call, and keeps no reference.
    let function_is_safe = quote! {
        #[inline(always)]
        fn #safe<#safe_type: #path::__layouts::__private::core::ops::Fn(#(#signature),*)>(#function: #safe_type) -> #safe_type {
            #function
        }
        let #function = #safe(#called);
    };
    let [counted, indexed] = match parameters.iter().any(|parameter| parameter.role == Role::Index) {
        true => [quote!(let #count = #private::Arguments::count(&#arguments);), quote!(let #index = #at;)],
        false => [TokenStream::new(), TokenStream::new()],
    };
    let constant_type = quote!(#grid::GridKernel<(#(#kinds,)*)>);
    let link = format!("The kernel [`{text}`](fn@{name}).");
    let deprecated = attributes.iter().find(|attribute| attribute.path().is_ident("deprecated"));
    let items = quote! {
        #only_if
        #[doc(hidden)]
        #[cfg(not(target_os = "cuda"))]
        #visibility mod #names {
            #markers
        }

        #only_if
        #[cfg(not(target_os = "cuda"))]
        const _: () = {
            #named
        };

        #only_if
        const _: () = { #checked };

        #only_if
        #[doc = #link]
        #deprecated
        #[cfg(not(target_os = "cuda"))]
        #visibility const #constant: #constant_type = unsafe { <#grid::GridKernel<(#(#own_kinds,)*)>>::new(#text, IMAGE) };

        #only_if
        #[cfg(target_os = "cuda")]
        #[unsafe(export_name = #text)]
        unsafe extern "ptx-kernel" fn #entry(#count: u64, #(#taken),*) {
            #function_is_safe
            unsafe {
                #places
                #private::for_each(
                    #count,
                    |#begin| (#(#private::Column::skip(#columns, #begin),)*),
                    |(#(#columns,)*), #at, #index| #function(#(#given),*),
                );
            }
        }
    };
    let host = quote! {
        |#host: &dyn #path::__layouts::image::KernelHost, #words: &[u64]| {
            #function_is_safe
            let #path::__layouts::__private::core::option::Option::Some(mut #arguments) =
                #private::Arguments::new(#host, #words, #(#lengths)+*) else { return };
            #counted
            // The promises of `Entry::run`'s caller.
            unsafe {
                #read
                for #at in #private::Arguments::part(&#arguments) {
                    #indexed
                    #function(#(#given),*);
                }
            }
        }
    };
    let entry = quote!(#path::__layouts::image::Entry { name: #text, arguments: #(#lengths)+*, run: #run });
    Expanded { items, entry, host }
}
