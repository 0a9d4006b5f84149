// Searches the site in the page itself, so that it also works for pages opened from disk, where
// browsers allow neither workers nor requests. Replaces search/main.js of MkDocs; `hooks.py` writes
// search/index.js, which sets `searchIndex` to the entries {location, title, text}.

(function () {
  const results = document.getElementById("mkdocs-search-results");
  const input = document.getElementById("mkdocs-search-query");
  if (!results || !input) return; // only search.html has them
  const root = base_url.endsWith("/") ? base_url : base_url + "/";

  function load(name) {
    return new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = root + "search/" + name;
      script.onload = done;
      script.onerror = failed;
      document.head.appendChild(script);
    });
  }

  function element(tag, text) {
    const made = document.createElement(tag);
    made.textContent = text;
    return made;
  }

  function show(found) {
    results.replaceChildren();
    for (const entry of found) {
      const link = element("a", entry.title);
      link.href = root + entry.location;
      const article = document.createElement("article");
      article.appendChild(document.createElement("h3")).appendChild(link);
      article.appendChild(element("p", entry.text.slice(0, 200).replace(/\S*$/, "...")));
      results.appendChild(article);
    }
    if (!found.length) results.appendChild(element("p", "No results found"));
  }

  Promise.all([load("lunr.js"), load("index.js")]).then(() => {
    const entries = new Map(searchIndex.map((entry) => [entry.location, entry]));
    const index = lunr(function () {
      this.field("title", { boost: 10 });
      this.field("text");
      this.ref("location");
      for (const entry of entries.values()) this.add(entry);
    });
    function search() {
      const words = lunr.tokenizer(input.value);
      const found = index.query((query) => {
        for (const word of words) {
          query.term(word.toString(), { boost: 10 });
          query.term(word.toString(), { wildcard: lunr.Query.wildcard.TRAILING });
        }
      });
      show(words.length ? found.map((hit) => entries.get(hit.ref)) : []);
    }
    input.addEventListener("input", search);
    input.value = new URLSearchParams(location.search).get("q") || "";
    search();
  });
})();
