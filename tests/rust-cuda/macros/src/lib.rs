use proc_macro::TokenStream;

/// Makes a function an entry of the module.
#[proc_macro_attribute]
pub fn kernel(_: TokenStream, function: TokenStream) -> TokenStream {
    let text = function.to_string().replacen("pub unsafe fn", "pub unsafe extern \"ptx-kernel\" fn", 1);
    format!("#[unsafe(no_mangle)] {text}").parse().expect("a function that is `pub unsafe`")
}
