//! The traits of a struct that `SharedLayout` refuses.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Type};

use crate::layout::OfStruct;

/// `options` is `None` if they are wrong too: then it may be a message.
pub(crate) fn stub(input: &DeriveInput, options: Option<&OfStruct>, path: &TokenStream) -> TokenStream {
    let (name, text) = (&input.ident, input.ident.to_string());
    let (parameters, arguments, conditions) = input.generics.split_for_impl();
    let where_plain = match conditions {
        _ if input.generics.params.is_empty() => quote!(#conditions),
        Some(conditions) => quote!(#conditions, Self: #path::DeviceBytes),
        None => quote!(where Self: #path::DeviceBytes),
    };
    let kind = match options {
        Some(OfStruct { message: None, .. }) => None,
        Some(OfStruct { message: Some(kind), .. }) => Some(quote!(#kind)),
        None => Some(quote!(u64::MAX)),
    };
    let message = kind.map(|kind| {
        quote! {
            impl #parameters #path::RingMessage for #name #arguments #where_plain {
                const KIND: u64 = #kind;
            }
        }
    });
    // Not `Send` and `Sync` of themselves, as messages are.
    let threads = has_pointer(input).then(|| {
        quote! {
            unsafe impl #parameters Send for #name #arguments #conditions {}
            unsafe impl #parameters Sync for #name #arguments #conditions {}
        }
    });
    quote! {
        // Never used: compilation fails.
        unsafe impl #parameters #path::Layout for #name #arguments #conditions {
            const DESCRIPTOR: #path::LayoutDescriptor = #path::LayoutDescriptor::of::<Self>(#text, &[]);
        }
        #message
        #threads
    }
}

fn has_pointer(input: &DeriveInput) -> bool {
    match &input.data {
        Data::Struct(data) => data.fields.iter().any(|field| matches!(field.ty, Type::Ptr(_))),
        _ => false,
    }
}
