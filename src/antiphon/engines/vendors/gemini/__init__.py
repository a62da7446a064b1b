"""The upstream dialect of Google's Gemini API: generateContent and batchEmbedContents."""
